"""WHERE FROM?  Tasks from GitHub, GitLab and Markdown files; results go back there."""
