# Changed: the import, which the example leaves out.
from kakoi.bash_executor import SecurityError, create_executor


class AIAgent:
    def __init__(self):
        self.executor = create_executor()

    def run_command(self, command: str):
        try:
            return self.executor.execute(command)
        except SecurityError as e:
            return {"error": str(e)}
