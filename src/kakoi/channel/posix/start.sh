# kakoi's program inside a sandbox without Python. Needs POSIX sh, /proc and the tools of any small
# image.
#
#   sh -c 'eval "$KAKOI_SH"' kakoi-CHANNEL SPEC BASE INIT LOUD SHELL LIMITS
#
# Requests come on descriptor 5: the file SPEC, or standard input. The first line is a key. Each
# request is a line KEY NONCE, a line with a verb, and lines of arguments, escaped for `printf %b`.
# The answer is the raw output on both streams, with these lines in between. No other process can
# forge them, because no other process knows the nonce:
#
#   stderr:  NONCE started ROOT MAIN BORN   before anything is done
#   stdout:  NONCE                          the end of the output
#   stderr:  NONCE end KIND STATUS ENDED SURVIVORS CPU_TICKS, the bytes of a path, and NONCE
#
# ROOT is a child subreaper (INIT, above this shell only), MAIN is this shell. Every process that a
# command starts stays below ROOT, however it hides, and is dead before `end` is written. BORN is
# the start time of ROOT, because pids are reused. This text continues in jobs.sh, watch.sh and
# orders.sh.
#
# All our variables are named k_*. All others are the environment, which belongs to the command.

set -fu
unset IFS
if [ -n "$1" ]; then exec 5<"$1"; else exec 5<&0 0</dev/null; fi
# Messages of this shell about its children must not appear on the command's stderr.
exec 9>&2 2>/dev/null
[ -z "$1" ] || rm -f "$1"
k_base=$2 k_init=$3 k_loud=$4 k_shell=$5
k_root=$PPID k_main=$$ k_spared='' k_nonce='' k_job='' k_draft='' k_home=$PWD
[ -n "$k_init" ] || k_root=1
k_exec="$6"'exec "$@" >&3 2>&4 3>&- 4>&-'

# These would change the meaning of a command that was judged without them.
if [ -n "${BASH_VERSION:-}" ]; then
    unset -f $(compgen -A function)
    export -n SHELLOPTS BASHOPTS
else
    unset SHELLOPTS BASHOPTS
fi
unset BASH_ENV ENV PROMPT_COMMAND PS4 BASH_XTRACEFD BASH_COMPAT POSIXLY_CORRECT GLOBIGNORE
unset EXECIGNORE CDPATH BASH_LOADABLES_PATH KAKOI_SH

# --- Processes. Nothing here starts one: during a fork bomb, no fork would succeed -----------------

# The time since the machine started, in 1/100 s.
now() {
    read -r k_up k_part </proc/uptime
    k_now=${k_up%.*}${k_up#*.}
}

# Reads the state of process $1; false if it is gone. Its name can contain anything, even newlines
# and parentheses, so the fields start after the last parenthesis.
look() {
    k_stat='' k_part=''
    while IFS= read -r k_part || [ -n "$k_part" ]; do
        k_stat="$k_stat $k_part" k_part=''
    done <"/proc/$1/stat"
    set -- ${k_stat##*)}
    [ $# -gt 20 ] || return 1
    k_state=$1 k_parent=$2 k_ticks=$((${14} + ${15})) k_threads=${18} k_born=${20}
}

# Is $k_root the process that was started at $k_then?
same_root() {
    look "$k_root" && [ "$k_born" = "$k_then" ]
}

# Lists the children of process $1 in $k_kids. A child belongs to the thread that forked it.
kids() {
    k_kids=''
    set +f
    if [ -e "/proc/$$/task/$$/children" ]; then
        for k_list in "/proc/$1/task/"*/children; do
            k_part=''
            read -r k_part <"$k_list" || :
            k_kids="$k_kids $k_part"
        done
    else
        for k_list in /proc/[0-9]*; do
            ! look "${k_list#/proc/}" || [ "$k_parent" != "$1" ] || k_kids="$k_kids ${k_list#/proc/}"
        done
    fi
    set -f
}

# Stops every process below root and main, except those two and the spared ones, and lists them in
# $k_found. A stopped process cannot fork or react to the death of another.
stop_below() {
    k_found='' k_todo="$k_root $k_main"
    while [ -n "$k_todo" ]; do
        set -- $k_todo
        k_todo=''
        for k_pid; do
            kids "$k_pid"
            for k_kid in $k_kids; do
                case " $k_root $k_main $k_spared " in *" $k_kid "*) continue ;; esac
                kill -STOP "$k_kid"
                alive "$k_kid" || continue
                k_found="$k_found $k_kid" k_todo="$k_todo $k_kid"
            done
        done
    done
}

# Counts process $1 once. False only for a zombie that may never be reaped, because process 1 may
# not be an init. A zombie with threads is a main thread that ended before the others.
alive() {
    look "$1" || return 0
    case $k_state$k_threads in
    [ZX]1 | [ZX]0)
        [ "$k_root" != 1 ]
        return
        ;;
    esac
    case $k_known in
    *" $1 "*) ;;
    *) k_known="$k_known$1 " k_ended=$((k_ended + 1)) ;;
    esac
}

# Kills every process below root and main. A list of children can miss one while another exits, so
# it repeats until a pass finds no process at all.
end_below() {
    k_ended=0 k_survivors=0 k_known=' '
    now
    k_limit=$((k_now + 500))
    stop_below
    while [ -n "$k_found" ]; do
        kill -KILL $k_found
        kill -CONT "$k_root" "$k_main"
        stop_below
        now
        [ "$k_now" -lt "$k_limit" ] || break
    done
    for k_pid in $k_found; do
        k_survivors=$((k_survivors + 1))
    done
}

# Reads how many OOM kills there were in this sandbox.
count_oom() {
    k_oom=0
    for k_list in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        while read -r k_part k_value; do
            [ "$k_part" != oom_kill ] || k_oom=$k_value
        done <"$k_list"
    done
}

count_cpu() {
    k_cpu=0
    ! look "$k_main" || k_cpu=$k_ticks
    [ "$k_root" = 1 ] || ! look "$k_root" || k_cpu=$((k_cpu + k_ticks))
}

# --- Requests --------------------------------------------------------------------------------------

take() {
    IFS= read -r k_value <&5 || exit 0
    case $k_value in
    *\\*)
        k_value=$(printf '%b.' "$k_value")
        k_value=${k_value%.}
        ;;
    esac
}

size() {
    set -- $(ls -lnL "$1")
    k_size=${5:-0}
}

# Appends the next $1 bytes of the request to file $2. Not with `head`, which can read more than it
# prints. Without `fullblock`, one read at a time: each can return less than requested.
take_bytes() {
    size "$2"
    k_before=$k_size k_have=0
    if [ "$1" -ge 65536 ] && dd iflag=fullblock count=0 </dev/null; then
        dd bs=65536 count=$(($1 / 65536)) iflag=fullblock <&5 >>"$2"
        size "$2"
        k_have=$((k_size - k_before))
    fi
    while [ "$k_have" -lt "$1" ]; do
        k_block=$(($1 - k_have))
        [ "$k_block" -lt 65536 ] || k_block=65536
        dd bs="$k_block" count=1 <&5 >>"$2"
        size "$2"
        [ $((k_size - k_before)) -gt "$k_have" ] || return
        k_have=$((k_size - k_before))
    done
}

begin() {
    printf '%s started %s %s %s\n' "$k_nonce" "$k_root" "$k_main" "$k_root_born" >&9
}

# Writes the end of an answer. Arguments: kind, exit code, and a file that contains a path.
finish() {
    [ "$k_rows" != 0 ] || printf '%s\n' "$k_nonce"
    printf '%s end %s %s %s %s %s\n' "$k_nonce" "$1" "$2" "$k_ended" "$k_survivors" "$k_cpu" >&9
    report "$3" >&9
    printf '%s\n' "$k_nonce" >&9
    k_nonce=''
}

# Prints what a command's shell reported at its end: its directory, and two lists of variables.
report() {
    [ ! -f "$1" ] || head -c 5000 "$1"
    [ ! -f "$1,env" ] || {
        printf '\0'
        head -c 33000 "$1,env"
    }
}

# Removes the temporary file of an unfinished order. Tries again, because whatever kills the
# processes below us can also kill `rm`.
discard_draft() {
    k_tries=0
    while [ -n "$k_draft" ] && [ -e "$k_draft" ] && [ "$k_tries" -lt 100 ]; do
        rm -f "$k_draft"
        k_tries=$((k_tries + 1))
    done
    k_draft=''
}

# A shell that cannot fork exits. Nothing was started then, and the client must be informed.
bye() {
    [ -z "$k_nonce" ] || [ -n "$k_job" ] || finish no-process 126 ''
}

serve() {
    trap bye EXIT
    # Caught, not ignored: the command would inherit ignored signals.
    trap : HUP INT QUIT TERM USR1 USR2 ALRM ABRT
    look "$k_root"
    k_root_born=$k_born
    read -r k_key <&5 || exit 0
    # A process that can write to our input may not know the key.
    while read -r k_part k_value <&5 && [ "$k_part" = "$k_key" ]; do
        k_nonce=$k_value k_rows=0 k_ended=0 k_survivors=0 k_cpu=0
        read -r k_verb <&5 || exit 0
        case $k_verb in
        run | job) run ;;
        watch) watch ;;
        *)
            begin
            if [ "$k_verb" = write_file ]; then draft; fi
            (operate)
            k_status=$?
            discard_draft
            finish done $k_status ''
            ;;
        esac
    done
    k_nonce=''
}

# --- Commands --------------------------------------------------------------------------------------

# The first request to create the file owns the id forever. On a full disk we continue without it.
claim() {
    k_record=$k_base/$k_id
    set -C
    printf '' >"$k_record" && k_part=0 || k_part=1
    set +C
    [ "$k_part" = 1 ] || return 0
    [ ! -e "$k_record" ] || return 1
    k_record=/dev/null
}

enter() {
    cd "$1" && return
    k_why='cwd-denied 126'
    [ -d "$1" ] || k_why='cwd-no-folder 126'
    [ -e "$1" ] || k_why='cwd-missing 126'
}

# Can program $1 be started with $k_path? Relative folders are ignored, as in keeper.py.
startable() {
    k_part='program-missing 127' k_rest=$k_path:
    case $1 in */*) k_rest=/: ;; esac
    while [ -n "$k_rest" ]; do
        k_folder=${k_rest%%:*}/ k_rest=${k_rest#*:}
        case $1 in */*) k_folder='' ;; esac
        case $k_folder$1 in
        /* | "$1")
            [ ! -f "$k_folder$1" ] || [ ! -x "$k_folder$1" ] || return 0
            [ ! -e "$k_folder$1" ] || k_part='program-denied 126'
            ;;
        esac
    done
    k_why=$k_part
}

# Sets the argument of `-c`: the text itself, or a line that reads it from a file if it is too long
# or if its shell must report at its end. `$0` and the parameters are the same.
as_argument() {
    [ "$k_report" = yes ] || [ ${#k_value} -gt 100000 ] || return 0
    if printf '%s\n' "$k_value" >"$k_base/$k_id,text"; then
        k_scrap=$k_base/$k_id,cwd k_value=". $k_base/$k_id,text"
        [ "$k_report" = no ] || k_value="{ export -p; printf '\\0'; } >$k_scrap,env
trap '{ command pwd -P >$k_scrap; { command export -p; printf \"\\0\"; } >>$k_scrap,env; } 2>/dev/null || :' EXIT
$k_value"
    elif [ ${#k_value} -gt 100000 ]; then
        k_why='no-room 126'
    fi
}

# Adds one word to the command. `set -- "$@" WORD` would take seconds for half a megabyte of words.
# Only our own variable names are evaluated.
append() {
    k_count=$((k_count + 1))
    eval "k_word_$k_count=\$1"
    k_args="$k_args \"\$k_word_$k_count\""
}

# Runs a command in the foreground (`run`) or in the background (`job`).
run() {
    read -r k_id k_kind k_input k_report k_rows k_columns k_way k_spill k_timeout k_idle k_words k_names <&5 || exit 0
    k_why='' k_scrap='' k_path=$PATH
    [ "$k_verb" = run ] || k_job=$k_id
    claim || k_why='taken 0'
    take
    k_cwd=$k_value
    IFS= read -r k_label <&5 || exit 0
    k_count=0 k_args=''
    [ "$k_names" = 0 ] || {
        append env
        append --
    }
    while [ "$k_names" -gt 0 ]; do
        take
        append "$k_value"
        case $k_value in PATH=*) k_path=${k_value#PATH=} ;; esac
        k_names=$((k_names - 1))
    done
    take
    k_program=$k_value
    # `env` would treat the program as a variable.
    case $k_count:$k_program in [!0]*:*=*)
        append /bin/sh
        append -c
        append 'exec "$@"'
        append sh
        ;;
    esac
    if [ "$k_kind" = text ]; then
        k_program=$k_shell
        [ -n "$k_why" ] || as_argument
        append "$k_shell"
        case $k_shell in */bash)
            append --norc
            append --noprofile
            ;;
        esac
        append -c
        append --
    fi
    append "$k_value"
    while [ "$k_words" -gt 1 ]; do
        take
        append "$k_value"
        k_words=$((k_words - 1))
    done
    eval "set -- $k_args"
    # The client is gone: nobody would end a command that starts now.
    [ -n "$k_job" ] || [ ! -e "$k_base/$0,closed" ] || exit 0
    now
    k_start=$k_now
    [ -z "$k_job" ] || [ "$k_why" != 'taken 0' ] || {
        rm -f "$k_base/${k_input#open:}"
        exit 0
    }
    [ -n "$k_why" ] || [ -z "$k_cwd" ] || enter "$k_cwd"
    [ -n "$k_why" ] || startable "$k_program"
    if [ -z "$k_why" ]; then
        execute "$@"
    elif [ -n "$k_job" ]; then
        announce_job
        end_job $k_why
    else
        finish $k_why ''
    fi
    cd "$k_home" || cd /
}

execute() {
    if [ -n "$k_job" ]; then open_job; else open_streams; fi
    begin
    unset OLDPWD
    # Without our own INIT, new children of process 1 belong to the command while it runs.
    [ "$k_root" != 1 ] || {
        kids 1
        k_spared=$k_kids
    }
    count_oom
    k_oom_before=$k_oom
    count_cpu
    k_cpu_before=$k_cpu
    # A second INIT reports how the command ended, which the exit code alone cannot, and gives it
    # the terminal. A shell reports less (`judge`), but saves a process.
    set -- sh -c "$k_exec" sh "$@"
    if [ -n "$k_init" ] && [ "$k_way" = loud ]; then
        set -- "$k_init" $k_loud -- "$@"
        k_way=${k_loud:-mute}
    else
        k_way=quiet
        # In its own process group, unless that would cost it its terminal.
        [ "$k_rows" != 0 ] || ! command -v setsid >/dev/null || set -- setsid "$@"
    fi
    exec 2>>"$k_record"
    "$@" <&6 3>&7 4>&8 5<&- 6<&- 7>&- 8>&- 9>&- >&2
    k_status=$?
    exec 2>/dev/null 6<&- 7>&- 8>&-
    end_below
    count_cpu
    k_cpu=$((k_cpu - k_cpu_before))
    judge
    k_then=$k_root_born
    if ! same_root; then
        # Orphans became children of process 1, not ours. The client must end them, and does so if
        # it receives nothing more from us.
        k_kind=lost k_cpu=0
        [ -n "$k_job" ] || {
            k_nonce=''
            exit 0
        }
    fi
    if [ -n "$k_job" ]; then
        end_job $k_kind $k_status
        return
    fi
    if [ "$k_rows" != 0 ]; then
        # The command may have left the output stopped, or another process group in the foreground.
        trap '' TTOU TTIN
        stty sane -ixon <&9
    fi
    finish $k_kind $k_status "$k_scrap"
    [ -z "$k_scrap" ] || rm -f "$k_scrap" "$k_scrap,env" "$k_base/$k_id,text"
}

# Descriptors 6, 7 and 8 become the command's standard streams.
open_streams() {
    exec 7>&1 8>&9
    if [ "$k_rows" != 0 ]; then
        stty rows "$k_rows" cols "$k_columns"
        exec 6<&0
    elif [ "$k_input" = open ]; then
        exec 6<&5
    else
        exec 6</dev/null
    fi
}

# Decides how the command ended: 128 + n can be a signal or a plain exit code. The record contains
# the message of INIT or of the shell, which prints none for SIGINT and SIGPIPE.
judge() {
    k_kind=exited
    [ "$k_status" -gt 128 ] || return 0
    k_said=''
    if [ "$k_record" = /dev/null ]; then k_way=mute; else k_said=$(head -c 2000 "$k_record"); fi
    # On a full disk there is no message, and 128 + n is usually a signal.
    [ -n "$k_said" ] || [ "$k_way" = quiet ] || k_way=mute
    case $k_way:$k_said in
    -v:*'exited normally'* | quiet:) ;;
    -v:*'exited with signal'* | quiet:?* | mute:*) k_kind=signalled ;;
    *) k_kind=lost ;;
    esac
    case $k_way$k_status in quiet130 | quiet141) k_kind=signalled ;; esac
    count_oom
    [ "$k_status" != 137 ] || [ "$k_oom" = "$k_oom_before" ] || k_kind=out_of_memory
}
