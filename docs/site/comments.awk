# Doxygen's input filter: the headers are written for people, with plain comments, and this marks them for Doxygen. A
# comment belongs to what follows it, one behind code to that code, with the lines below it in the same column. The first
# comment of a header is about the file. Lines that are indented and belong to no list stay as they are set. What Doxygen
# would read as markup is escaped, except between backticks.

function escaped(text,    parts, count, i, result) {
  count = split(text, parts, "`")
  for (i = 1; i <= count; ++i) {
    if (i % 2 == 1) {
      gsub(/[\\@<>#*%&|~]/, "\\\\&", parts[i])
      gsub(/>_/, ">\\_", parts[i])
      gsub(/_\\</, "\\_\\<", parts[i])
      gsub(/ _/, " \\_", parts[i])
    }
    result = result (i > 1 ? "`" : "") parts[i]
  }
  return result
}

# The column of a comment behind code, outside string literals; 0 if there is none.
function trailing_comment(line,    i, c, quoted) {
  for (i = 1; i < length(line); ++i) {
    c = substr(line, i, 1)
    if (quoted && c == "\\") ++i
    else if (c == "\"") quoted = !quoted
    else if (!quoted && substr(line, i, 2) == "//") return i
  }
  return 0
}

function end_verbatim() {
  if (verbatim) print "/// @endverbatim"
  verbatim = 0
}

/^ *\/\/ (-+$|NOLINT|clang-format)/ { end_verbatim(); print ""; column = 0; next }

/^ *\/\// {
  match($0, /\/\//)
  text = substr($0, RSTART + 2)
  indent = substr($0, 1, RSTART - 1)
  if (RSTART == column) { print indent "///<" escaped(text); next }
  column = 0
  if (!seen) print "/// @file"
  seen = 1
  if (text ~ /^ - /) list = 1
  else if (text !~ /^  /) list = 0
  if (text ~ /^   / && !list) {
    if (!verbatim) print "/// @verbatim"
    verbatim = 1
    print indent "///" text
  } else {
    end_verbatim()
    print indent "///" escaped(text)
  }
  next
}

{
  end_verbatim()
  list = 0
  column = trailing_comment($0)
  if (column && $0 !~ /} +\/\/ namespace|^#/) print substr($0, 1, column - 1) "///<" escaped(substr($0, column + 2))
  else { column = 0; print }
}
