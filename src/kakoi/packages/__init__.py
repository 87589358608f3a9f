"""MAY IT BE INSTALLED?  Lists of package names, and the one way to install what is on them."""
