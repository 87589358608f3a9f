"""MAY IT BE INSTALLED?  Allowlists of packages, and the one installer for what is on them."""
