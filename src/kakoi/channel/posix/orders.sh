# --- Orders: all requests of the client other than commands. Each order runs in its own shell, and
# its exit code is an errno -------------------------------------------------------------------------

operate() {
    case $k_verb in
    probe) probe ;;
    put | append)
        read -r k_name k_length <&5
        [ "$k_verb" = append ] || printf '' >"$k_base/$k_name"
        take_bytes "$k_length" "$k_base/$k_name" || exit 28
        ;;
    drop)
        read -r k_id <&5
        rm -f "$k_base/$k_id,stdout" "$k_base/$k_id,stderr"
        ;;
    prune) prune ;;
    write_file) write_file ;;
    read_file) read_file ;;
    stream_file) stream_file ;;
    list_files) list_files ;;
    list_links) list_links ;;
    stat_file) stat_file ;;
    make_dir) make_dir ;;
    move_file) move_file ;;
    remove_file) remove_file ;;
    room) room ;;
    resize) resize ;;
    jobs) list_jobs ;;
    state)
        read -r k_id <&5
        describe || exit 2
        k_out=0 k_err=0
        [ "$k_line" = running ] || totals
        printf '%s\n' "$k_line" "$k_out $k_err"
        report "$k_base/$k_id,cwd"
        ;;
    stop) stop ;;
    signal) signal_job ;;
    stdin) write_stdin ;;
    output) output ;;
    *) exit 38 ;;
    esac
}

# Finds a folder for our files, an INIT that works as a subreaper, and a shell, by trying them.
probe() {
    k_user=$(id -u)
    for k_list in /tmp /var/tmp /dev/shm /run; do
        k_base=$k_list/.kakoi-$k_user
        [ -d "$k_base" ] || mkdir -m 700 "$k_base"
        set -- $(ls -ldn "$k_base")
        case ${1:-}:${3:-} in drwx------*:"$k_user") [ ! -w "$k_base" ] || break ;; esac
        k_base=''
    done
    k_init='' k_flag=''
    for k_list in /sbin/docker-init /run/podman-init /usr/bin/tini /sbin/tini /usr/bin/catatonit; do
        for k_part in -s ''; do
            [ -z "$k_init" ] && [ -x "$k_list" ] && reaps "$k_list" $k_part || continue
            k_init=$k_list k_flag=$k_part
        done
    done
    k_loud=''
    [ -z "$k_init" ] || case $("$k_init" -v -- true 2>&1) in *'exited normally'*) k_loud=-v ;; esac
    k_shell=/bin/sh
    for k_list in /usr/local/bin/bash /usr/bin/bash /bin/bash; do
        [ ! -x "$k_list" ] || k_shell=$k_list
    done
    printf '%s\n' "$k_base" "$k_init" "$k_flag" "$k_loud" "$k_shell"
    [ -z "$k_base" ] || prune
}

# Does an orphan below $1 become its child?
reaps() {
    [ yes = "$("$@" -- sh -c '
        orphan=$(sleep 9 >/dev/null & echo $!)
        read -r _ _ _ parent _ <"/proc/$orphan/stat"
        kill -9 "$orphan"
        [ "$parent" != "$PPID" ] || echo yes
    ')" ]
}

# Removes the files of all but the newest commands. Those of running jobs stay.
prune() {
    cd "$k_base" || exit 2
    k_known=' ' k_limit=200
    ls -t | while IFS= read -r k_name; do
        k_id=${k_name%%,*}
        case $k_id in '' | *[!A-Za-z0-9_.-]*) continue ;; esac
        case $k_known in *" $k_id "*) continue ;; esac
        k_known="$k_known$k_id " k_limit=$((k_limit - 1))
        [ "$k_limit" -lt 0 ] || continue
        [ ! -e "$k_id,job" ] || [ -e "$k_id,end" ] || continue
        set +f
        rm -f -- "$k_id" "$k_id",*
        set -f
    done
}

# --- Files -----------------------------------------------------------------------------------------

# Exits with the errno for an error message of a tool or a shell.
refuse() {
    case $1 in
    *'o such file'* | *onexistent*) exit 2 ;;
    *'ot permitted'*) exit 1 ;;
    *'ermission denied'*) exit 13 ;;
    *'busy'*) exit 16 ;;
    *'ile exists'*) exit 17 ;;
    *'ot empty'*) exit 39 ;;
    *'ubdirectory of itself'* | *'nvalid argument'*) exit 22 ;;
    *'ot a directory'*) exit 20 ;;
    *'s a directory'*) exit 21 ;;
    *'o space'*) exit 28 ;;
    *'ead-only'*) exit 30 ;;
    *'too long'*) exit 36 ;;
    *'oo many levels'* | *'oo many symbolic'*) exit 40 ;;
    esac
    exit 5
}

must_exist() {
    k_part=$(LC_ALL=C stat -L "$1" 2>&1 >/dev/null) || refuse "$k_part"
}

part() {
    if [ "$2" = 0 ]; then head -c "$3" "$1"; else tail -c +$(($2 + 1)) "$1" | head -c "$3"; fi
}

must_be_readable() {
    must_exist "$k_value"
    [ ! -d "$k_value" ] || exit 21
    [ -f "$k_value" ] || exit 22
    [ -r "$k_value" ] || exit 13
}

read_file() {
    read -r k_offset k_length <&5
    take
    must_be_readable
    part "$k_value" "$k_offset" "$k_length"
}

stream_file() {
    read -r k_offset <&5
    take
    must_be_readable
    if [ "$k_offset" = 0 ]; then cat "$k_value"; else tail -c +$((k_offset + 1)) "$k_value"; fi || exit 5
}

# Names the temporary file, next to the file that it will replace; a link is followed to its target.
# Named before the order runs, so that it can be removed whichever process is killed meanwhile.
draft() {
    read -r k_name k_mode k_length <&5 || exit 0
    take
    [ ! -L "$k_value" ] || k_value=$(readlink -f "$k_value" && echo .) k_value=${k_value%??}
    k_draft=${k_value%/*}/.kakoi-$k_name
}

write_file() {
    [ ! -d "$k_value" ] || exit 21
    k_part=$(LC_ALL=C stat "$k_value" 2>&1 >/dev/null) || case $k_part in
    *'o such file'*) ;;
    *) refuse "$k_part" ;;
    esac
    set -C
    k_part=$( (printf '' >"$k_draft") 2>&1) || refuse "$k_part"
    set +C
    if [ "$k_length" = parts ]; then
        take_parts
    else
        take_bytes "$k_length" "$k_draft" || exit 28
    fi
    k_part=$({ chmod "$k_mode" "$k_draft" && mv -f "$k_draft" "$k_value"; } 2>&1) || refuse "$k_part"
}

# Parts of a file whose size nobody knows: each after a line with its size, and a 0 at the end.
take_parts() {
    k_length=''
    while IFS= read -r k_length <&5; do
        case $k_length in
        0) return ;;
        '' | *[!0-9]*) exit 125 ;;
        esac
        take_bytes "$k_length" "$k_draft" || exit 28
    done
    exit 125
}

# Prints the first directory whose disk has no space or no inode left, of those where commands
# usually write.
room() {
    take
    for k_list in "${k_value:-$k_home}" "$k_home" "${TMPDIR:-/tmp}" "${HOME:-/}"; do
        if full "$k_list" -k 64 || full "$k_list" -i 1; then
            printf '%s\n' "$k_list"
            return
        fi
    done
}

# Is less than $3 free for $1, in the units of `df $2`?
full() {
    set -- "$3" $(df -P "$2" "$1" | tail -n 1)
    case ${3:-0}${5:-x} in 0* | *[!0-9]*) return 1 ;; esac
    [ "$5" -lt "$1" ]
}

# No path that `find` prints contains `//`, so it always marks the beginning of an entry.
list_files() {
    read -r k_depth k_length <&5
    take
    must_exist "$k_value"
    [ -d "$k_value" ] || exit 20
    [ -r "$k_value" ] && cd "$k_value" || exit 13
    find . -mindepth 1 -maxdepth "$k_depth" -exec stat -c '//%f %s %Y %u %g %U/%G/%n' {} + |
        head -c "$k_length"
}

# Prints the links of a tree: the sizes of path and target in bytes, path and target.
list_links() {
    read -r k_depth k_length <&5
    take
    cd "$k_value" || exit 13
    LC_ALL=C find . -mindepth 1 -maxdepth "$k_depth" -type l -exec sh -c '
        for path; do
            target=$(readlink "$path" && echo .)
            target=${target%??}
            printf "%s %s %s%s" "${#path}" "${#target}" "$path" "$target"
        done' sh {} + | head -c "$k_length"
}

stat_file() {
    take
    k_part=$(LC_ALL=C stat -c '%f %s %Y %u %g %U/%G' "$k_value" 2>&1) || refuse "$k_part"
    printf '%s\n' "$k_part"
    [ ! -L "$k_value" ] || readlink "$k_value"
}

must_be_there() {
    k_part=$(LC_ALL=C stat "$1" 2>&1 >/dev/null) || refuse "$k_part"
}

is_directory() {
    [ -d "$1" ] && [ ! -L "$1" ]
}

make_dir() {
    read -r k_mode k_parents <&5
    take
    [ ! -d "$k_value" ] || {
        echo there
        return
    }
    k_list=${k_value%/*}
    [ "$k_parents" = no ] || [ -z "$k_list" ] || {
        k_part=$(LC_ALL=C mkdir -p "$k_list" 2>&1) || refuse "$k_part"
    }
    k_part=$(LC_ALL=C mkdir -m "$k_mode" "$k_value" 2>&1) || refuse "$k_part"
}

# As rename(2): `mv` would move it into a directory, or to another file system.
move_file() {
    take
    k_source=$k_value
    take
    must_be_there "$k_source"
    k_list=${k_value%/*}/.
    must_exist "$k_list"
    k_file=$(stat -c '%d %i' "$k_source")
    [ "${k_file% *}" = "$(stat -L -c %d "$k_list")" ] || exit 18
    if [ -e "$k_value" ] || [ -L "$k_value" ]; then
        [ "$k_file" != "$(stat -c '%d %i' "$k_value")" ] || return 0
        if is_directory "$k_value"; then
            is_directory "$k_source" || exit 21
            k_part=$(LC_ALL=C rmdir "$k_value" 2>&1) || refuse "$k_part"
        elif is_directory "$k_source"; then
            exit 20
        elif [ -d "$k_value" ]; then
            k_part=$(LC_ALL=C rm -f "$k_value" 2>&1) || refuse "$k_part"
        fi
    fi
    k_part=$(LC_ALL=C mv -f "$k_source" "$k_value" 2>&1) || refuse "$k_part"
}

remove_file() {
    read -r k_how <&5
    take
    must_be_there "$k_value"
    k_flags=-f
    if is_directory "$k_value"; then
        [ "$k_how" = all ] || exit 21
        k_flags=-rf
    fi
    k_part=$(LC_ALL=C rm "$k_flags" "$k_value" 2>&1 | head -c 4000)
    [ -e "$k_value" ] || [ -L "$k_value" ] || return 0
    # Some `rm` fail without a word at a directory that they cannot read.
    [ -n "$k_part" ] || k_part=$(LC_ALL=C find "$k_value" 2>&1 >/dev/null | head -c 4000)
    refuse "$k_part"
}

# --- Terminals and jobs ----------------------------------------------------------------------------

resize() {
    read -r k_pid k_rows k_columns <&5
    stty rows "$k_rows" cols "$k_columns" <"/proc/$k_pid/fd/0" || exit 25
}

# Sets $k_line to the line that says how job $k_id ended, to `running`, or to `gone` if its shell
# was killed. False if there is no such job. Commands can write these files too, so numbers are
# checked.
describe() {
    k_line=gone
    read -r k_root k_main k_then k_start <"$k_base/$k_id,job" || return
    case "$k_root$k_main$k_then$k_start" in *[!0-9]*) return 1 ;; esac
    [ "${k_root:-0}" -gt 1 ] && [ -n "$k_start" ] || return
    ! same_root || k_line=running
    [ ! -e "$k_base/$k_id,end" ] || ! read -r k_value <"$k_base/$k_id,end" || k_line=$k_value
}

stop() {
    read -r k_id <&5
    describe || exit 2
    if [ "$k_line" = running ]; then
        printf 'cancelled\n' >"$k_base/$k_id,why"
        read -r k_spared <"$k_base/$k_id,spared" || k_spared=''
        end_below
    fi
}

# Signals the process group of a job: a child of main that is none of ours, or of the INIT there.
signal_job() {
    read -r k_id k_signal k_depth <&5
    describe || exit 2
    [ "$k_line" = running ] || return 0
    read -r k_spared <"$k_base/$k_id,spared" || k_spared=''
    kids "$k_main"
    k_ended=0
    for k_kid in $k_kids; do
        case " $k_spared " in *" $k_kid "*) continue ;; esac
        k_main=$k_kid k_depth=$((k_depth - 1))
        send
        break
    done
    [ "$k_ended" = 1 ] || exit 11
}

list_jobs() {
    now
    k_moment=$k_now
    set +f
    set -- "$k_base"/*,job
    set -f
    for k_job; do
        k_id=${k_job%,job} k_id=${k_id##*/}
        [ -e "$k_job" ] && describe || continue
        totals
        k_label=''
        { read -r k_value && IFS= read -r k_label; } <"$k_job"
        printf '%s\n' "$k_id $((k_moment - k_start)) $k_out $k_err" "$k_line" "$k_label"
    done
}

# Counts all output of job $k_id, stored or not.
totals() {
    total stdout
    k_out=$k_size
    total stderr
    k_err=$k_size
}

total() {
    size "$k_base/$k_id,$1"
    lost "$k_base/$k_id,$1"
    k_size=$((k_size + k_lost))
}

lost() {
    k_lost=0
    [ ! -e "$1,lost" ] || read -r k_lost <"$1,lost"
    case $k_lost in '' | *[!0-9]*) k_lost=0 ;; esac
}

write_stdin() {
    read -r k_id k_close k_length <&5
    k_new=$k_base/$k_id,input,$$
    printf '' >"$k_new"
    take_bytes "$k_length" "$k_new" || exit 28
    describe || exit 2
    k_status=0
    # The initial input comes first.
    while [ "$k_line" = running ] && [ -e "$k_base/$k_id,first" ]; do
        sleep 0.1 || sleep 1
        describe || exit 2
    done
    if [ "$k_line" != running ] || [ ! -p "$k_base/$k_id,in" ]; then
        k_status=32
    elif [ "$k_length" != 0 ]; then
        # In one write: `cat` would try again, and get a broken pipe if the job has read enough.
        dd bs=65536 count=1 <"$k_new" >"$k_base/$k_id,in" || k_status=32
    fi
    rm -f "$k_new"
    if [ "$k_close" = close ] && read -r k_pid <"$k_base/$k_id,holder"; then
        ! look "$k_pid" || [ "$k_parent" != "$k_main" ] || kill -KILL "$k_pid"
    fi
    exit "$k_status"
}

# Prints a part of the output of job or command $k_id. Checks first whether it has ended, so that
# `ended` means that the output is complete.
output() {
    read -r k_id k_stream k_offset k_length <&5
    k_file=$k_base/$k_id,$k_stream k_line=ended
    [ ! -e "$k_base/$k_id,job" ] || describe || exit 2
    [ -e "$k_file" ] || [ -e "$k_base/$k_id,job" ] || exit 2
    size "$k_file"
    lost "$k_file"
    printf '%s %s %s\n' "$k_size" "$k_lost" "${k_line%% *}"
    [ "$k_size" -le "$k_offset" ] || part "$k_file" "$k_offset" "$k_length"
}

serve
