#!/bin/sh
# Lets both the agent and the owner of a project write to it, whatever their user ids are.
#
#   permissions.sh PROJECT FOLDER...
#
# As root, in a container of its own; PROJECT says who the owner is. Where the two are different
# users, both get an entry in the access control list of every file, which new files inherit.
set -eu

agent=$(id -u agent)
owner=$(stat -c %u "$1")

as() {
    setpriv --reuid "$1" --regid "$1" --clear-groups test -w "$2"
}

for folder; do
    [ "$(stat -c %u "$folder") $owner" != "$agent $agent" ] || continue
    # It was done before, and everything since then has inherited it.
    ! getfacl -cnp "$folder" | grep -qx "default:user:$agent:rwx" || continue
    for entry in "u:$agent:rwX,d:u:$agent:rwX" "u:$owner:rwX,d:u:$owner:rwX"; do
        setfacl -R -P -m "$entry" "$folder" || true
    done
    if ! as "$agent" "$folder" || ! as "$owner" "$folder"; then
        echo "permissions.sh: $folder has no access control lists, so the agent cannot write there" >&2
        echo "permissions.sh: build the image with KAKOI_UID=$owner instead" >&2
        exit 1
    fi
done
