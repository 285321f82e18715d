#!/bin/sh
# What README.md and docs/*.md name is there, and the crates depend in one direction.
# Use: sh tests/docs.sh
# Checked: `dir/path` in backticks (dir one of crates docs presets experiments examples traces tests bench);
# links to files and headings;
# `file.rs::name` in backticks (some file of that name under crates defines it); flashlane crates in each Cargo.toml;
# a target for each stack.
set -u

cd "$(dirname "$0")/.." || exit 2
bad=0
define='(fn|struct|enum|trait|type|const|static|mod)'
fail() {
    bad=$((bad + 1))
    echo "FAIL  $1"
}

tokens=$(mktemp) && found=$(mktemp) || exit 2
trap 'rm -f "$tokens" "$found"' EXIT
for doc in README.md docs/*.md; do
    # One token per line: what stands between backticks, outside fenced blocks.
    awk '/^```/ { skip = !skip; next } !skip' "$doc" | grep -o '`[^` ]*`' | tr -d '`' | sort -u >"$tokens"
    n=0
    while read -r token; do
        case $token in
            *'*'* | *'<'* | *'{'*) ;;
            *.rs::*)
                n=$((n + 1))
                file=${token%%::*}
                name=${token##*::}
                find crates -path "crates/*/$file" -type f >"$found"
                if [ ! -s "$found" ]; then
                    fail "$doc: no file $file under crates"
                elif ! xargs grep -qE "$define $name\\b" <"$found"; then
                    fail "$doc: $file does not define $name"
                fi
                ;;
            crates/* | docs/* | presets/* | experiments/* | examples/* | traces/* | tests/* | bench/*)
                n=$((n + 1))
                [ -e "$token" ] || fail "$doc: no $token"
                ;;
        esac
    done <"$tokens"
    # Links: to a file beside the page, or to a heading in it.
    awk '/^```/ { skip = !skip; next } !skip' "$doc" | grep -o '](\([^)]*\))' | sed 's/^](//; s/)$//' | sort -u >"$tokens"
    while read -r link; do
        case $link in
            http*) ;;
            '#'*)
                n=$((n + 1))
                sed -n 's/^#* //p' "$doc" | tr 'A-Z ' 'a-z-' | tr -d '.,:()`' | grep -qx "${link#?}" ||
                    fail "$doc: no heading $link"
                ;;
            *)
                n=$((n + 1))
                [ -e "$(dirname "$doc")/${link%%#*}" ] || fail "$doc: no $link"
                ;;
        esac
    done <"$tokens"
    echo "ok    $doc: $n paths, names and links looked up"
done

# allow CRATE DEPS: flashlane crates that its [dependencies] may name. Tests may use testkit besides.
allow() {
    toml=crates/$1/Cargo.toml
    deps=$(awk '/^\[/ { on = ($0 == "[dependencies]") } on' "$toml" | sed -n 's/^flashlane-\([a-z0-9]*\).*/\1/p')
    for dep in $deps; do
        case " $2 " in
            *" $dep "*) ;;
            *) fail "$toml: $1 may not depend on $dep (allowed: ${2:-none})" ;;
        esac
    done
    echo "ok    $toml: depends on $(echo ${deps:-nothing of ours})"
}
allow base ""
allow rt "base"
allow media "base rt"
allow ocssd "base rt media"
allow ftl "base rt media ocssd detect"
allow stack "base rt ocssd ftl idiscard"
allow detect "base"
allow trace "base detect"
allow serve "base rt ftl"
allow lab "base rt media ocssd ext4 files ftl stack trace serve parafs"
allow parafs "base rt ocssd ftl"
allow files "base"
allow ext4 "base"
allow idiscard "base rt ftl ext4 trace"
allow cli "base rt media ocssd ftl lab testkit files ext4 idiscard"
allow testkit "base rt media ocssd ftl stack parafs"
allow model ""

for toml in crates/*/Cargo.toml; do
    crate=$(basename "$(dirname "$toml")")
    case $crate in
        base | rt | media | ocssd | ftl | stack | detect | ext4 | idiscard | files | trace | serve | parafs | lab | cli | testkit | model) ;;
        *) fail "$toml: a crate that docs/ARCHITECTURE.md does not place" ;;
    esac
    grep -q '^\[lints\]' "$toml" || fail "$toml: the workspace's lint table is not used"
done

# Each stack that is tortured is named where targets are listed, and their number nowhere: it grows.
sed -n 's/^ *row("\([a-z-]*\)".*/\1/p' crates/testkit/src/stacks.rs >"$tokens"
[ -s "$tokens" ] || fail "crates/testkit/src/stacks.rs: no stack found"
while read -r name; do
    grep -q "\`$name\`" docs/TESTING.md || fail "docs/TESTING.md: no target $name"
done <"$tokens"
if grep -nE '([0-9]|[a-z]teen|ten|eleven|twelve|twenty) stacks' docs/TESTING.md; then
    fail "docs/TESTING.md: a number of stacks, which will be another one: leave it out"
fi
echo "ok    docs/TESTING.md: $(wc -l <"$tokens") stacks"

# What CI must not skip is what some test may skip.
sed 's/#.*//; /^ *$/d' tests/must-run >"$tokens"
while read -r name; do
    grep -rqE "skip.sh(\"|) note $name |skip\\(\"$name\"" Makefile tests/*.sh crates --include='*.rs' \
        --include=Makefile --include='*.sh' || fail "tests/must-run: no test is skipped as $name"
done <"$tokens"
echo "ok    tests/must-run: $(wc -l <"$tokens") tests"

# Each mutant in the code has a row in docs/MUTANTS.md with what catches it, or why nothing does, and each row a mutant.
grep -rhoE 'mutant!\("[a-z0-9.-]+"\)' crates/*/src --include='*.rs' | cut -d'"' -f2 |
    grep -v '^base\.\|^layer\.' | sort -u >"$tokens"
awk -F ' [|] ' '/^[|] `?[a-z0-9-]+[.]/ && ($4 ~ /`/ || $4 ~ /^nothing: /) {
    gsub(/[|` ]/, "", $1); print $1 }' docs/MUTANTS.md | sort >"$found"
comm -3 "$tokens" "$found" >"$tokens.odd"
while read -r name; do
    fail "docs/MUTANTS.md: $name has no row that says what catches it, no mutant in the code, or two rows"
done <"$tokens.odd"
rm -f "$tokens.odd"
echo "ok    docs/MUTANTS.md: $(wc -l <"$found") mutants"

for file in README CHANGELOG docs/ARCHITECTURE docs/COOKBOOK docs/DECISIONS docs/FORMAT docs/GLOSSARY docs/MUTANTS docs/TESTING; do
    file=$file.md
    [ -s "$file" ] || fail "no $file"
done

if [ "$bad" -ne 0 ]; then
    echo "docs: $bad checks failed"
    exit 1
fi
echo "docs: all good"
