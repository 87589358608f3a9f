"""WHAT IS IN THE PLACE?  The images of environments, made from one description in two ways."""
