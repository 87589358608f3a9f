#!/bin/sh
# Puts one package of npm's, and what it depends on, into a folder of a project; and nothing else.
#
#   npm.sh FOLDER PACKAGE
#
# In the folder itself npm would also install what its package.json names, run scripts of all of them
# and obey the settings there. So npm works in an empty folder, without scripts. The package is then in
# FOLDER/node_modules/.kakoi/NAME, with what it depends on, and FOLDER/node_modules/NAME is a link to it:
# other packages of the project stay as they are, and so do package.json and its lock file.
# Prints a name and a version on each line.
set -eu

folder=$1
package=$2
modules=$folder/node_modules
version=${package#?}
case $version in *@*) version=@${version#*@} ;; *) version= ;; esac
name=${package%"$version"}
case $name in */*) up=../ scope=${name%/*} ;; *) up='' scope=. ;; esac
store=$modules/.kakoi/$name
# No file is larger, whatever a registry answers; a shell counts in blocks of 512 bytes, or 1024.
ulimit -f 4194304

# A link would lead out of the folder.
for each in "$modules" "$modules/.kakoi" "$modules/.bin" "$modules/$scope" "$modules/.kakoi/$scope"; do
    if [ -L "$each" ]; then
        echo "$each is a link: remove it" >&2
        exit 1
    fi
done

new=
work=$(mktemp -d)
trap 'rm -rf "$work" "$new"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work/in"
cd "$work/in"
echo '{"private": true}' >package.json
# Dependencies that are repositories would run scripts of their own: there is no git. With --prefix the
# settings of the system would not be read either; no folder above takes this one for its workspace.
npm install --no-workspaces --userconfig /dev/null --cache "$work/cache" --git false \
    --ignore-scripts --legacy-peer-deps --no-audit --no-fund --no-update-notifier "$package" >&2
[ ! -e package-lock.json ] || node -e '
    const all = JSON.parse(require("fs").readFileSync("package-lock.json", "utf8")).packages
    for (const [path, about] of Object.entries(all))
        if (path) console.log(about.name || path.replace(/^.*node_modules\//, ""), about.version)'

mkdir -p "$modules/.kakoi/$scope" "$modules/$scope"
new=$(mktemp -d "$modules/.kakoi/.new-XXXXXX")
chmod 755 "$new"
mv node_modules "$new/"
rm -rf "$store" "${modules:?}/$name"
mv "$new" "$store"
ln -s "$up.kakoi/$name/node_modules/$name" "$modules/$name"
for program in "$store/node_modules/.bin"/*; do
    case $(readlink "$program" || :) in
    "../$name/"*)
        mkdir -p "$modules/.bin"
        ln -sfn "../.kakoi/$name/node_modules/.bin/${program##*/}" "$modules/.bin/${program##*/}"
        ;;
    esac
done
