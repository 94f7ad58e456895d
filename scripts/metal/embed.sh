#!/bin/sh
# Prints the table of MSL texts for library.mm: one entry a .metal file, its #include "..." lines replaced by the files (each once).
# Usage: scripts/metal/embed.sh kernels/metal/*.metal
set -eu
for file in "$@"; do
  printf '{"%s", R"MSL(' "$(basename "$file" .metal)"
  awk '
    function folder(path) { sub(/[^\/]*$/, "", path); return path }
    function tidy(path) { while (path ~ /[^\/.][^\/]*\/\.\.\//) sub(/[^\/.][^\/]*\/\.\.\//, "", path); return path }
    function emit(path,   line, number, name) {
      if (path in seen) return
      seen[path] = 1
      printf "#line 1 \"%s\"\n", path
      while ((got = (getline line < path)) > 0) {
        number++
        if (line ~ /^[ \t]*#[ \t]*include[ \t]*"/) {
          name = line
          sub(/^[^"]*"/, "", name)
          sub(/".*$/, "", name)
          emit(tidy(folder(path) name))
          printf "#line %d \"%s\"\n", number + 1, path
        } else print line
      }
      if (got < 0) { print "embed.sh: cannot read " path > "/dev/stderr"; exit 1 }
      close(path)
    }
    BEGIN { emit(ARGV[1]) }
  ' "$file"
  printf ')MSL"},\n'
done
