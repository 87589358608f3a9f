# --- The watcher: ends commands on request, and everything if the client is gone -------------------

watch() {
    read -r k_base k_init <&5 || exit 0
    kids 1
    k_residents=$k_kids
    while read -r k_number k_verb k_root k_main k_then k_signal k_depth <&5; do
        k_spared='' k_survivors=0 k_ended=0
        case $k_verb in
        end)
            [ "$k_root" != 1 ] || k_spared=$k_residents
            ! same_root || end_below
            ;;
        signal) ! same_root || send ;;
        sweep) sweep ;;
        esac
        printf '%s %s %s\n' "$k_number" "$k_survivors" "$k_ended"
    done
    end_channel
    printf 'closed\n'
    k_nonce=''
    exit 0
}

# Signals the process group of the command: a child of main, or of the INIT below main.
send() {
    while [ "$k_depth" -gt 0 ]; do
        kids "$k_main"
        set -- $k_kids
        k_main=${1:-0} k_depth=$((k_depth - 1))
    done
    # A signal to the group of process 1 would reach every process.
    [ "$k_main" -gt 1 ] || return
    k_ended=1
    kill -"$k_signal" -"$k_main" || kill -"$k_signal" "$k_main"
}

# One of our shells or INITs was killed, so the processes below it are children of process 1 now.
# Ends every child that process 1 has got since we started, except jobs.
sweep() {
    k_spared=$k_residents
    set +f
    for k_list in "$k_base"/*,job; do
        [ -e "$k_list" ] && [ ! -e "${k_list%job}end" ] || continue
        read -r k_pid k_part <"$k_list" && k_spared="$k_spared $k_pid"
    done
    set -f
    k_root=1 k_main=1
    end_below
}

# Ends every process that was started for this channel. They are found by their name, which no
# command can change.
end_channel() {
    printf '' >"$k_base/$0,closed"
    set +f
    set -- /proc/[0-9]*
    set -f
    for k_entry; do
        k_root=${k_entry#/proc/} k_part=''
        [ "$k_root" != "$$" ] && look "$k_root" && [ "$k_parent" = 0 ] || continue
        read -r k_part <"$k_entry/cmdline" || :
        case $k_part in *"$0"*) ;; *) continue ;; esac
        kill -CONT "$k_root"
        kids "$k_root"
        set -- $k_kids
        k_main=${1:-$k_root} k_spared=''
        [ -n "$k_init" ] || k_main=$k_root k_root=1 k_spared=$k_residents
        end_below
    done
}
