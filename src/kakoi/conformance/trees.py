"""Process trees that do not want to end, in the words of any POSIX shell.

Every process of a tree has the mark in its arguments or in its environment, and none lives for
ever, should it be left behind.
"""

from kakoi.runner.commands import Command

# name → how the tree grows; `$0` is the mark.
TREES = {
    "child": "sleep $0 &",
    "own session": "setsid sleep $0 &",
    "daemons": "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sleep $0 & setsid sleep $0 &); done",
    "empty environment": "(env -i setsid sleep $0 &)",
    "deaf to signals": """
trap '' HUP INT QUIT TERM USR1 USR2 ALRM TSTP TTIN TTOU PIPE
sh -c 'sleep $0; sleep $0; sleep $0' $0 &
""",
    "stopped": """
sh -c 'kill -STOP $$; sleep $0' $0 &
until grep -q '^State:.*T' /proc/$!/status; do :; done
""",
    "a chain of sessions": """
export CHAIN='
if [ $1 -gt 0 ]; then setsid sh -c "$CHAIN" $0 $(($1 - 1)); :
else echo up >"$HERE/up"; sleep $0
fi'
sh -c "$CHAIN" $0 20 &
read -r word <"$HERE/up"
""",
    "holders of every stream": "(setsid sh -c 'sleep $0; :' $0 <&0 &)",
    # Each lives only long enough to start the next one. Some seconds long, not for ever.
    "comets": """
export COMET='[ $1 -gt 5000 ] || setsid sh -c "$COMET" $0 $(($1 + 1)) &'
for i in 1 2 3; do sh -c "$COMET" $0 0; done
""",
    "a guard that raises its dead": "(trap '' TERM; while :; do sleep $0; done) &",
}


def tree(kind: str, mark: str, place: str, *, then: str, timeout_s: float | None = None) -> Command:
    """A command that grows the tree, says `grown`, and then does as told."""
    script = f'mkfifo "$HERE/up" 2>/dev/null\n{TREES[kind]}\necho grown\n{then}\n'
    return Command(
        command=["sh", "-c", script, mark],
        env={"MARK": mark, "HERE": place},
        timeout_s=timeout_s,
    )
