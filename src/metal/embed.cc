// metal_embed VARIABLE OUT ROOT FILES...: writes the files as one Metal program, as a C++ string or, if VARIABLE is
// "-", as text. Includes below ROOT are expanded once: a library compiled at run time has no include path.

#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

namespace {

// The text of `path` below `root`; false if a file cannot be read.
bool append(const std::string& root, const std::string& path, std::set<std::string>& prediction, std::string& text) {
  if (!prediction.insert(path).second) return true;
  std::ifstream in(root + path);
  if (!in) {
    std::cerr << "metal_embed: cannot read " << root + path << "\n";
    return false;
  }
  for (std::string line; std::getline(in, line);) {
    const std::size_t open = line.find('"');
    if (line == "#pragma once") continue;
    if (line.rfind("#include", 0) == 0 && open != std::string::npos) {
      if (!append(root, line.substr(open + 1, line.rfind('"') - open - 1), prediction, text)) return false;
    } else {
      text += line + "\n";
    }
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) return 2;
  const std::string variable = arguments[1];
  const std::string out = arguments[2];
  const std::string root = arguments[3];
  std::set<std::string> prediction;
  std::string text;
  for (int i = 4; i < count; ++i) {
    std::string path = arguments[i];
    if (path.rfind(root, 0) == 0) path.erase(0, root.size());
    if (!append(root, path, prediction, text)) return 1;
  }
  std::ofstream file(out);
  if (variable == "-") {
    file << text;
  } else {
    // Compilers need not accept string literals of more than 64 KB.
    file << "namespace thalweg::metal {\n\nextern const char* const " << variable << ";\nconst char* const " << variable
         << " =\n";
    std::istringstream lines(text);
    std::string literal;
    for (std::string line; std::getline(lines, line);) {
      literal += line + "\n";
      if (literal.size() < 8000 && lines.peek() != EOF) continue;
      file << "R\"metal(" << literal << ")metal\"\n";
      literal.clear();
    }
    file << "    ;\n\n}  // namespace thalweg::metal\n";
  }
  return file ? 0 : 1;
}
