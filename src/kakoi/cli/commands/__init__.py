"""One module or package per `kakoi` subcommand; each holds a click command named `command`."""
