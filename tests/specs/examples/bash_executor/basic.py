from kakoi.bash_executor import create_executor

executor = create_executor()
result = executor.execute("ls -la")
print(result['stdout'])
