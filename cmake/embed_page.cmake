# Writes the server's page as a C++ source: cmake -DPAGE=index.html -DOUTPUT=page.cc -P embed_page.cmake
# Its policy names the page's one script and one style by their SHA-256, in base64.

file(READ "${PAGE}" page)

function(base64_of_hex hex result)
  set(letters ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  # 32 bytes: ten groups of three, and two bytes that a zero fills up.
  set(hex "${hex}00")
  set(text "")
  foreach(group RANGE 10)
    math(EXPR at "6 * ${group}")
    string(SUBSTRING "${hex}" ${at} 6 digits)
    foreach(shift 18 12 6 0)
      math(EXPR letter "(0x${digits} >> ${shift}) & 63")
      string(SUBSTRING "${letters}" ${letter} 1 letter)
      string(APPEND text "${letter}")
    endforeach()
  endforeach()
  string(SUBSTRING "${text}" 0 43 text)
  set(${result} "${text}=" PARENT_SCOPE)
endfunction()

function(hash_of_element name result)
  string(FIND "${page}" "<${name}>" begin)
  string(FIND "${page}" "</${name}>" end)
  if(begin LESS 0 OR end LESS begin)
    message(FATAL_ERROR "${PAGE} has no <${name}>")
  endif()
  string(LENGTH "<${name}>" opening)
  math(EXPR begin "${begin} + ${opening}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${page}" ${begin} ${length} content)
  string(SHA256 hex "${content}")
  base64_of_hex(${hex} hash)
  set(${result} "'sha256-${hash}'" PARENT_SCOPE)
endfunction()

hash_of_element(script script)
hash_of_element(style style)
set(policy "default-src 'none'; script-src ${script}; style-src ${style}; connect-src 'self'; img-src 'self' data:; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
# Compilers need not take literals of more than 65536 bytes.
string(FIND "${page}" "<script>" begin)
string(SUBSTRING "${page}" 0 ${begin} head)
string(SUBSTRING "${page}" ${begin} -1 rest)
file(WRITE "${OUTPUT}" "#include \"server/page.h\"

namespace thalweg::server {

std::string_view page() {
  static const std::string text = std::string(R\"page(${head})page\") + R\"page(${rest})page\";
  return text;
}

std::string page_policy() { return \"${policy}\"; }

}  // namespace thalweg::server
")
