#!/bin/sh
# Installs packages that are on the list, and writes every request down.
#
#   install.sh TYPE PACKAGE...
#
# TYPE is apt, pip or npm. The name of PACKAGE must be on the list in /etc/allowlist; extras are
# allowed: requests[socks]. A version is accepted only as the list gives it: with `requests` there is
# none, with `requests==2.32` that one, with `requests==*` any. pip installs into ~/.venv
# (INSTALL_VENV), npm into node_modules of this folder, by npm.sh: nothing else that the folder names
# is installed. apt needs root. Requests are written to /logs/install-YYYYMMDD.jsonl
# (INSTALL_LOG_DIR).
#
# Exit status: 0 installed, 1 not on the list, 2 failed, 3 there is no list, 4 there is no such type;
# of several packages, the largest.
#
# The rules are those of kakoi's packages/allowlist.py; the tests hold both against each other.
#
# shellcheck disable=SC2018,SC2019  # the letters of names are those of ASCII
# shellcheck disable=SC2317  # the functions that install are called by name
set -u
LC_ALL=C
export LC_ALL
umask 022

lists=/etc/allowlist
npm_program=/usr/local/share/kakoi/npm.sh
logs=${INSTALL_LOG_DIR:-/logs}
longest=256
cr=$(printf '\r')
# Nothing of the agent's may be found first by root.
[ "$(id -u)" -ne 0 ] || PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

part='[A-Za-z0-9][A-Za-z0-9._-]*'
compared='(===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9][A-Za-z0-9.!+*_-]*'
pip_name='[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?'
pip_form="$pip_name(\\[$part(,$part)*\\])?($compared(,$compared)*)?"
pip_line="$pip_name(\\[$part(,$part)*\\])?(==([A-Za-z0-9][A-Za-z0-9.!+_-]*|\\*))?"
npm_form="(@$part/)?$part(@([~^=]|[<>]=?)?[A-Za-z0-9*][A-Za-z0-9.+*-]*)?"
# pip and npm take these for files of the folder they run in.
archive='\.(zip|whl|egg|tar|tgz|tbz|txz|tlz|gz|bz2|xz|lz|lzma)$'
apt_form='[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9][A-Za-z0-9.+:~-]*)?'
apt_line='[a-z0-9][a-z0-9+.-]+(=([A-Za-z0-9][A-Za-z0-9.+:~-]*|\*))?'

say() {
    printf 'install.sh: %s\n' "$*" >&2
}

# What may be shown and written down of a text: one line of plain letters.
plain() {
    printf '%s' "$1" | tr '\000-\037\177-\377' '?' | cut -c "1-$longest"
}

quoted() {
    printf '%s' "$1" | sed 's/[\\"]/\\&/g'
}

# --- Is it on the list? ----------------------------------------------------------------------

# split TYPE TEXT: a well-formed text as $name and $version. The version has its sign.
split() {
    case $1 in
    apt)
        name=${2%%=*}
        version=${2#"$name"}
        ;;
    npm)
        version=${2#?}
        case $version in *@*) version=@${version#*@} ;; *) version= ;; esac
        name=${2%"$version"}
        ;;
    pip)
        name=${2%%[][=~!<>]*}
        version=${2#"$name"}
        version=${version#*]}
        # One name has many spellings; its letters are small by now.
        while :; do
            case $name in
            *[._]*) name=${name%%[._]*}-${name#*[._]} ;;
            *--*) name=${name%%--*}-${name#*--} ;;
            *) break ;;
            esac
        done
        ;;
    esac
}

# lower TYPE: the input, in small letters where that is the same name.
lower() {
    if [ "$1" = pip ]; then tr 'A-Z\000' 'a-z?'; else tr '\000' '?'; fi
}

# entries TYPE LIST: the lines that say something.
entries() {
    lower "$1" <"$2" | sed "s/^[ 	]*//; s/[ 	$cr]*\$//" | grep -v -e '^#' -e '^$'
}

well_formed() {
    case $1 in
    '' | *[!]A-Za-z0-9@/._+~^*=\<\>!,:[-]*) return 1 ;;
    esac
    [ "${#1}" -le "$longest" ] && printf '%s\n' "$1" | grep -Eqx -e "$2"
}

# find_listed TYPE LIST PACKAGE: what is to be installed, as $wanted.
find_listed() {
    case $1 in
    apt) form=$apt_form line=$apt_line files='^$' ;;
    npm) form=$npm_form line=$npm_form files=$archive ;;
    pip) form=$pip_form line=$pip_line files=$archive ;;
    esac
    wanted_version=
    well_formed "$3" "$form" || return 1
    ! printf '%s\n' "$3" | grep -Eiq -e "$files" || return 1
    { entries "$1" "$2" | grep -Evx -e "$line"; entries "$1" "$2" | grep -Ei -e "$files"; } |
        while read -r wrong; do
            say "$2: not a package: $(plain "$wrong")"
        done
    split "$1" "$(printf '%s' "$3" | lower "$1")"
    wanted_name=$name wanted_version=$version
    pin=$(
        entries "$1" "$2" | grep -Ex -e "$line" | grep -Eiv -e "$files" | while read -r entry; do
            [ "${#entry}" -le "$longest" ] || continue
            split "$1" "$entry"
            [ "$name" = "$wanted_name" ] || continue
            case $1$version in
            "$1$wanted_version" | 'apt=*' | 'pip==*' | 'npm@*') echo any && break ;;
            esac
            [ -n "$wanted_version" ] || { echo "$version" && break; }
        done
    )
    case $pin in
    '') return 1 ;;
    any) wanted=$3 ;;
    *) wanted=$3$pin ;;
    esac
}

# --- Install it ------------------------------------------------------------------------------

# clean COMMAND...: without variables that name another source, or code to run.
clean() {
    env -i PATH="$PATH" HOME="${HOME:-/}" LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
        ${no_proxy:+"no_proxy=$no_proxy"} ${SSL_CERT_FILE:+"SSL_CERT_FILE=$SSL_CERT_FILE"} \
        ${REQUESTS_CA_BUNDLE:+"REQUESTS_CA_BUNDLE=$REQUESTS_CA_BUNDLE"} \
        ${NODE_EXTRA_CA_CERTS:+"NODE_EXTRA_CA_CERTS=$NODE_EXTRA_CA_CERTS"} "$@"
}

# In /, where no file of the project has the name of a package; isolated, none has that of a module.
pip_install() {
    venv=${INSTALL_VENV:-${HOME:-}/.venv}
    [ -e "$venv/pyvenv.cfg" ] || clean python3 -I -m venv "$venv" || return
    (cd / && PATH=$venv/bin:$PATH && clean pip install --isolated --no-input \
        --disable-pip-version-check "$1")
}

apt_install() {
    if [ "$(id -u)" -eq 0 ]; then
        clean apt-get update -qq || return
    fi
    clean apt-get install -y "$1" && return
    apt_failed=$?
    [ "$(id -u)" -eq 0 ] ||
        say "apt needs root; from outside: kakoi install --container $(uname -n) apt $1" \
            "(or in the image: kakoi image build --apt $1)"
    return "$apt_failed"
}

npm_install() {
    clean sh "$npm_program" "$PWD" "$1"
}

# --- Write it down ---------------------------------------------------------------------------

# In hundredths of a second; empty if nobody can say.
clock() {
    read -r now _ 2>/dev/null </proc/uptime || return 0
    echo "${now%.*}${now#*.}"
}

# append FILE LINE: with the rights of the owner of the folder. Root must not be led elsewhere.
append() {
    if [ "$(id -u)" -eq 0 ]; then
        # shellcheck disable=SC2016  # that shell expands it
        owner=$(stat -c %u "$logs") && setpriv --reuid "$owner" --regid "$(stat -c %g "$logs")" \
            --clear-groups sh -c 'printf "%s\n" "$2" >>"$1"' sh "$1" "$2"
    else
        printf '%s\n' "$2" >>"$1"
    fi
}

# record PACKAGE STATUS DURATION ERROR: one line; if it cannot be written, that is reported and changes nothing.
record() {
    entry="{\"timestamp\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\", \"type\": \"$type\""
    entry="$entry, \"package\": \"$(quoted "$(plain "$1")")\", \"status\": \"$2\""
    [ -z "$3" ] || entry="$entry, \"duration_ms\": $3"
    [ -z "$4" ] || entry="$entry, \"error\": \"$(quoted "$4")\""
    (append "$logs/install-$(date -u +%Y%m%d).jsonl" "$entry}") 2>/dev/null ||
        say "warning: this is not in the log, $logs cannot be written"
}

# The end of the error output, in one line, without the passwords in addresses.
last_words() {
    tail -c 400 "$1" | tr '\n\t' '  ' | tr '\000-\037\177-\377' '?' | sed 's#//[^/@ ]*@#//#g; s/ *$//'
}

# --- One request after the other -------------------------------------------------------------

request() {
    if ! find_listed "$type" "$list" "$1"; then
        say "$type: not on the list: $(plain "$1")${wanted_version:+ (a version only as listed)}"
        record "$1" rejected '' ''
        return 1
    fi
    errors=$(mktemp) || errors=/dev/null
    began=$(clock)
    "${type}_install" "$wanted" 2>"$errors"
    failed=$?
    ended=$(clock)
    took=
    [ -z "$began" ] || [ -z "$ended" ] || took=$(((ended - began) * 10))
    cat "$errors" >&2
    error=$(last_words "$errors")
    [ "$errors" = /dev/null ] || rm -f "$errors"
    if [ "$failed" -ne 0 ]; then
        record "$1" failed "$took" "exit status $failed: $error"
        return 2
    fi
    record "$1" success "$took" ''
}

type=${1:-}
case $type in
apt | pip | npm) ;;
*)
    say "there is no type '$(plain "$type")'; use: install.sh apt|pip|npm PACKAGE..."
    exit 4
    ;;
esac
shift
[ $# -gt 0 ] || {
    say "which package? use: install.sh $type PACKAGE..."
    exit 4
}
list=$lists/$type.txt
worst=0
package=
trap 'record "$package" failed "" interrupted; exit 2' HUP INT TERM
for package; do
    if [ -f "$list" ] && [ -r "$list" ]; then
        request "$package"
        status=$?
    else
        say "there is no list $list, so nothing may be installed"
        record "$package" failed '' 'there is no list'
        status=3
    fi
    [ "$status" -le "$worst" ] || worst=$status
done
exit "$worst"
