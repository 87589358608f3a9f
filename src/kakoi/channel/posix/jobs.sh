# --- Jobs: commands whose streams are files, with their own timeouts -------------------------------

# Writes the job's record for later clients. Not with `mv`: ending the job also kills every process
# that its shell starts meanwhile. In one write: a reader sees all of it, or an empty file.
announce_job() {
    k_files=$k_base/$k_id
    printf '%s\n%s\n' "$k_root $k_main $k_root_born $k_start" "$k_label" >"$k_files,job"
}

open_job() {
    k_files=$k_base/$k_id
    mkfifo "$k_files,o" "$k_files,e"
    pump "$k_files,stdout" <"$k_files,o" 5<&- &
    k_spared=$!
    pump "$k_files,stderr" <"$k_files,e" 5<&- &
    k_spared="$k_spared $!"
    k_pumps=$k_spared
    exec 7>"$k_files,o" 8>"$k_files,e"
    case $k_input in
    none) exec 6</dev/null ;;
    open*)
        mkfifo "$k_files,in"
        [ "$k_input" = open ] || mv "$k_base/${k_input#open:}" "$k_files,first"
        hold >"$k_files,in" 5<&- 7>&- 8>&- &
        k_spared="$k_spared $!"
        printf '%s\n' "$!" >"$k_files,holder"
        exec 6<"$k_files,in"
        ;;
    *) exec 6<"$k_base/$k_input" ;;
    esac
    [ "$k_timeout$k_idle" = 00 ] || {
        clock &
        k_spared="$k_spared $!"
    }
    printf '%s\n' "$k_spared" >"$k_files,spared"
    announce_job
}

# Writes the initial input, then keeps stdin open while other writers come and go. The job's stdin
# ends when this process does.
hold() {
    trap - EXIT
    [ ! -e "$k_files,first" ] || cat "$k_files,first"
    rm -f "$k_files,first"
    exec sleep 2147483647
}

# Stores the first $k_spill bytes in file $1 and counts the rest. Each read is written at once, so
# that the output can be read while the job runs.
pump() {
    trap - EXIT
    k_have=0
    printf '' >"$1"
    while [ "$k_have" -lt "$k_spill" ]; do
        k_room=$((k_spill - k_have)) k_block=4096
        [ "$k_room" -ge 4096 ] || k_block=$k_room
        dd bs="$k_block" count=$((k_room / k_block)) >>"$1"
        size "$1"
        [ "$k_size" -gt "$k_have" ] || break
        k_have=$k_size
    done
    wc -c >"$1,lost"
}

# The timeouts, in 1/100 s. Once a file has reached its limit, further output cannot be seen, so the
# job never counts as idle.
clock() {
    trap - EXIT
    # With `exec`: some shells keep copies of descriptors that are closed for a function call, and
    # the pumps would never see end of file.
    exec 5<&- 6<&- 7>&- 8>&-
    read -r k_self k_part </proc/self/stat
    k_spared="$k_spared $k_self" k_seen='' k_why=''
    while [ -z "$k_why" ]; do
        sleep 0.1 || sleep 1
        now
        if [ "$k_idle" != 0 ]; then
            size "$k_files,stdout"
            k_part=$k_size
            size "$k_files,stderr"
            case "$k_part $k_size" in
            "$k_seen") ;;
            *) k_heard=$k_now k_seen="$k_part $k_size" ;;
            esac
            case " $k_seen " in *" $k_spill "*) k_heard=$k_now ;; esac
            [ $((k_now - k_heard)) -lt "$k_idle" ] || k_why=idle_timeout
        fi
        [ "$k_timeout" = 0 ] || [ $((k_now - k_start)) -lt "$k_timeout" ] || k_why=timed_out
    done
    printf '%s\n' "$k_why" >"$k_files,why"
    end_below
}

end_job() {
    k_kind=$1
    [ ! -e "$k_files,in" ] || {
        # A process that waits for a reader of the input must not wait forever.
        exec 6<>"$k_files,in"
        rm -f "$k_files,in"
        exec 6<&-
    }
    [ -z "$k_spared" ] || wait $k_pumps
    [ ! -e "$k_files,why" ] || read -r k_kind <"$k_files,why"
    now
    printf '%s\n' "$k_kind $2 $k_ended $k_survivors $k_cpu $((k_now - k_start))" >"$k_files,end"
    [ -z "$k_spared" ] || kill -KILL $k_spared
    rm -f "$k_base/${k_input#open:}" "$k_files,first" "$k_files,o" "$k_files,e" "$k_files,holder"
    rm -f "$k_files,spared" "$k_files,text"
}
