# --- What our side asks for besides commands. Each order runs in a shell of its own, and its status
# is an errno -----------------------------------------------------------------------------------------

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
    list_files) list_files ;;
    stat_file) stat_file ;;
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
    stdin) write_stdin ;;
    output) output ;;
    *) exit 38 ;;
    esac
}

# Where to keep things, who can keep processes, which shell: tried, not guessed.
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

# Removes what belongs to all but the newest commands. Running jobs stay.
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

# The errno behind what a tool or a shell said.
refuse() {
    case $1 in
    *'o such file'* | *onexistent*) exit 2 ;;
    *'ermission denied'*) exit 13 ;;
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

read_file() {
    read -r k_offset k_length <&5
    take
    must_exist "$k_value"
    [ ! -d "$k_value" ] || exit 21
    [ -f "$k_value" ] || exit 22
    [ -r "$k_value" ] || exit 13
    part "$k_value" "$k_offset" "$k_length"
}

# A file is made beside the one that it replaces, which may be what a link leads to. Named before
# the order is carried out, so that it can be removed whoever is killed meanwhile.
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
    take_bytes "$k_length" "$k_draft" || exit 28
    k_part=$({ chmod "$k_mode" "$k_draft" && mv -f "$k_draft" "$k_value"; } 2>&1) || refuse "$k_part"
}

# The first of the directories where commands usually write on whose disk no room or inode is left.
room() {
    take
    for k_list in "${k_value:-$k_home}" "$k_home" "${TMPDIR:-/tmp}" "${HOME:-/}"; do
        if full "$k_list" -k 64 || full "$k_list" -i 1; then
            printf '%s\n' "$k_list"
            return
        fi
    done
}

# Has $1 less than $3 of what `df $2` counts?
full() {
    set -- "$3" $(df -P "$2" "$1" | tail -n 1)
    case ${3:-0}${5:-x} in 0* | *[!0-9]*) return 1 ;; esac
    [ "$5" -lt "$1" ]
}

# No name holds a slash, so that two of them can only be ours.
list_files() {
    read -r k_length <&5
    take
    must_exist "$k_value"
    [ -d "$k_value" ] || exit 20
    [ -r "$k_value" ] && cd "$k_value" || exit 13
    find . ! -name . -prune -exec stat -c '//%f %s %Y %n' {} + | head -c "$k_length"
}

stat_file() {
    take
    k_part=$(LC_ALL=C stat -c '%f %s %Y' "$k_value" 2>&1) || refuse "$k_part"
    printf '%s\n' "$k_part"
}

# --- Terminals and jobs ----------------------------------------------------------------------------

resize() {
    read -r k_pid k_rows k_columns <&5
    stty rows "$k_rows" cols "$k_columns" <"/proc/$k_pid/fd/0" || exit 25
}

# The line that says how job $k_id ended, or `running`, or `gone` if its shell was killed. False if
# there is no such job. Commands can write these files too: a number is only taken for one if it is.
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

# How much job $k_id has written, kept or not.
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
    # What it was given at its start comes first.
    while [ "$k_line" = running ] && [ -e "$k_base/$k_id,first" ]; do
        sleep 0.1 || sleep 1
        describe || exit 2
    done
    if [ "$k_line" != running ] || [ ! -p "$k_base/$k_id,in" ]; then
        k_status=32
    elif [ "$k_length" != 0 ]; then
        # In one write: a `cat` that looks for more finds a broken pipe if that was all it wanted.
        dd bs=65536 count=1 <"$k_new" >"$k_base/$k_id,in" || k_status=32
    fi
    rm -f "$k_new"
    if [ "$k_close" = close ] && read -r k_pid <"$k_base/$k_id,holder"; then
        ! look "$k_pid" || [ "$k_parent" != "$k_main" ] || kill -KILL "$k_pid"
    fi
    exit "$k_status"
}

# A part of what job or command $k_id has written. Whether it is over is asked first.
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
