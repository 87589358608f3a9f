"""What does a command do?  From arguments to effects: runs, writes, deletes, sends."""
