#!/usr/bin/env bash
# Apptainer on a Debian whose release has none: the package of unstable, unpacked to a folder of its
# own, with unstable's C library beside it. Nothing of the machine is replaced.
#     scripts/real/apptainer.sh [FOLDER]     default: /opt/apptainer; linked from /usr/local/bin
# Needs root (to write there), patchelf, squashfs-tools, squashfuse, libseccomp2 and libsqlite3-0.
set -euo pipefail

folder=${1:-/opt/apptainer}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# the machine's own mirror of Debian; apt fills the names in
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Identifier: Packages' |
  awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')
[[ -n $mirror ]] || { echo "no mirror of Debian among apt's sources" >&2; exit 1; }
key=/usr/share/keyrings/debian-archive-keyring.gpg

mkdir -p "$work"/{lists,cache/archives,root}
touch "$work/status"
echo "deb [signed-by=$key] $mirror sid main" >"$work/sources"
options=(-qq -o "Dir::Etc::SourceList=$work/sources" -o Dir::Etc::SourceParts=-
  -o "Dir::State::Lists=$work/lists" -o "Dir::State::status=$work/status"
  -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(cd "$work" && apt-get "${options[@]}" download apptainer libc6)
for package in "$work"/*.deb; do
  dpkg-deb --extract "$package" "$work/root"
done

rm -rf "$folder"
mv "$work/root" "$folder"
libraries=$(dirname "$folder"/usr/lib/*/ld-linux-*.so.*)
loader=$(echo "$libraries"/ld-linux-*.so.*)
for program in "$folder/usr/bin/apptainer" "$libraries/apptainer/bin/starter"; do
  patchelf --set-interpreter "$loader" \
    --force-rpath --set-rpath "$libraries:/usr/lib/$(basename "$libraries")" "$program"
done
# the programs look for them beside themselves
ln -s ../etc ../var "$folder/usr/"
ln -s ../../etc ../../var "$folder/usr/lib/"
chmod 755 "$folder"
ln -sf "$folder/usr/bin/apptainer" /usr/local/bin/apptainer
apptainer --version
