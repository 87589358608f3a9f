"""WHERE FROM?  Tasks out of GitHub, GitLab and Markdown files, and what came of them back."""
