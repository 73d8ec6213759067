#include "metal/host/dialect.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <set>

namespace thalweg::metal {
namespace {

bool is_word_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// "# 12 "file.metal" 1": the next line is line 12 of that file.
void read_line_marker(std::string_view line, std::string& file, int& number) {
  const std::size_t digit = line.find_first_of("0123456789");
  const std::size_t open = line.find('"');
  const std::size_t close = line.rfind('"');
  if (digit == std::string_view::npos || open == std::string_view::npos || close <= open) return;
  number = std::stoi(std::string(line.substr(digit))) - 1;
  file = line.substr(open + 1, close - open - 1);
}

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

constexpr std::array<std::string_view, 4> kAddressSpaces = {"device", "threadgroup", "constant", "thread"};

// Index of the token that closes tokens[open]; the last token if none does.
std::size_t closing(const std::vector<Token>& tokens, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < tokens.size(); ++i) {
    const std::string& text = tokens[i].text;
    if (text == "(" || text == "{" || text == "[" || text == "[[") ++depth;
    if (text == ")" || text == "}" || text == "]" || text == "]]") --depth;
    if (depth == 0) return i;
  }
  return tokens.size() - 1;
}

void find(std::vector<Finding>& findings, const Token& token, std::string text) {
  findings.push_back({token.file, token.line, std::move(text)});
}

// The parameter declared by tokens[begin, end).
KernelParameter read_parameter(const std::vector<Token>& tokens, std::size_t begin, std::size_t end,
                               std::vector<Finding>& findings) {
  KernelParameter result;
  std::size_t attribute = begin;
  while (attribute < end && tokens[attribute].text != "[[") ++attribute;
  if (attribute == end || attribute == begin) {
    find(findings, tokens[begin], "a kernel's parameter needs an attribute");
    return result;
  }
  result.attribute = tokens[attribute + 1].text;
  if (tokens[attribute + 2].text == "(") result.index = std::stoi(tokens[attribute + 3].text);
  result.name = tokens[attribute - 1].text;
  bool constant = false;
  bool device = false;
  for (std::size_t i = begin; i + 1 < attribute; ++i) {
    const std::string& text = tokens[i].text;
    if (text == "&") {
      result.reference = true;
      continue;
    }
    constant |= text == "const";
    device |= text == "device";
    result.type += (result.type.empty() ? "" : " ") + text;
  }
  result.writable = device && !constant;
  // Metal requires the same number of components for all positions and sizes of a kernel.
  const bool position = result.attribute.find("position_in") != std::string::npos ||
                        result.attribute.find("per_grid") != std::string::npos;
  if (position && result.type != "uint3") find(findings, tokens[begin], result.attribute + " that is not a uint3");
  return result;
}

}  // namespace

std::vector<Token> tokenize(std::string_view text) {
  std::vector<Token> tokens;
  std::string file;
  int line = 1;
  bool attribute = false;
  std::size_t i = 0;
  const auto add = [&](Token::Kind kind, std::size_t length) {
    tokens.push_back({kind, std::string(text.substr(i, length)), file, line});
    i += length;
  };
  while (i < text.size()) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      ++i;
      if (i < text.size() && text[i] == '#') {
        const std::size_t end = std::min(text.find('\n', i), text.size());
        read_line_marker(text.substr(i, end - i), file, line);
        i = end;
      }
    } else if (c == '#' && i == 0) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      read_line_marker(text.substr(0, end), file, line);
      i = end;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
    } else if (is_word_start(c)) {
      std::size_t length = 1;
      while (i + length < text.size() && is_word(text[i + length])) ++length;
      add(Token::Kind::kWord, length);
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0 ||
               (c == '.' && i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0)) {
      std::size_t length = 1;
      while (i + length < text.size()) {
        const char d = text[i + length];
        const char before = text[i + length - 1];
        const bool exponent = (d == '+' || d == '-') && (before == 'e' || before == 'E' || before == 'p');
        if (!is_word(d) && d != '.' && !exponent) break;
        ++length;
      }
      add(Token::Kind::kNumber, length);
    } else if (c == '"' || c == '\'') {
      std::size_t length = 1;
      while (i + length < text.size() && text[i + length] != c) length += text[i + length] == '\\' ? 2 : 1;
      add(Token::Kind::kText, length + 1);
    } else if (text.substr(i, 2) == "[[") {
      attribute = true;
      add(Token::Kind::kSign, 2);
    } else if (attribute && text.substr(i, 2) == "]]") {
      attribute = false;
      add(Token::Kind::kSign, 2);
    } else {
      add(Token::Kind::kSign, 1);
    }
  }
  return tokens;
}

Program read_program(const std::vector<Token>& tokens, std::vector<Finding>& findings) {
  Program program;
  for (std::size_t i = 0; i + 4 < tokens.size(); ++i) {
    const std::string& text = tokens[i].text;
    if (text == "constant" && tokens[i + 3].text == "[[" && tokens[i + 4].text == "function_constant") {
      if (tokens[i + 1].text != "int") find(findings, tokens[i], "function constants are of type int");
      program.constants.push_back({tokens[i + 2].text, std::stoi(tokens[i + 6].text)});
    }
    if (text != "kernel" || tokens[i + 1].text != "void") continue;
    KernelDeclaration kernel;
    kernel.name = tokens[i + 2].text;
    const bool limited = i >= 6 && tokens[i - 5].text == "max_total_threads_per_threadgroup";
    if (limited) kernel.max_threads = std::stoi(tokens[i - 3].text);
    const std::size_t close = closing(tokens, i + 3);
    std::size_t begin = i + 4;
    int depth = 0;
    for (std::size_t j = begin; j <= close; ++j) {
      const std::string& sign = tokens[j].text;
      if (depth == 0 && (sign == "," || j == close)) {
        if (j > begin) kernel.parameters.push_back(read_parameter(tokens, begin, j, findings));
        begin = j + 1;
      }
      if (sign == "(" || sign == "[[") ++depth;
      if (sign == ")" || sign == "]]") --depth;
    }
    program.kernels.push_back(std::move(kernel));
    i = close;
  }
  return program;
}

namespace {

// Names of types: the language's, template parameters, the kernels' own structs.
std::set<std::string, std::less<>> type_names(const std::vector<Token>& tokens) {
  std::set<std::string, std::less<>> types = {"void",
                                              "bool",
                                              "char",
                                              "uchar",
                                              "short",
                                              "ushort",
                                              "int",
                                              "uint",
                                              "float",
                                              "half",
                                              "bfloat",
                                              "long",
                                              "ulong",
                                              "auto",
                                              "int8_t",
                                              "uint8_t",
                                              "int16_t",
                                              "uint16_t",
                                              "int32_t",
                                              "uint32_t",
                                              "int64_t",
                                              "uint64_t",
                                              "simdgroup_float8x8",
                                              "atomic_uint",
                                              "atomic_int"};
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const std::string& text = tokens[i].text;
    if (text == "struct" || text == "typename" || text == "class" || text == "enum") types.insert(tokens[i + 1].text);
  }
  return types;
}

void check_words(const std::vector<Token>& tokens, std::vector<Finding>& findings) {
  constexpr std::array<std::string_view, 19> kRefused = {
      "double", "try",      "catch",  "throw",    "new",     "delete",   "virtual", "dynamic_cast", "typeid",  "goto",
      "asm",    "operator", "static", "volatile", "mutable", "explicit", "friend",  "co_await",     "co_yield"};
  for (const Token& token : tokens) {
    if (token.kind == Token::Kind::kWord && contains(kRefused, token.text)) find(findings, token, token.text);
  }
}

// A bracket that does not index opens a lambda.
void check_lambdas(const std::vector<Token>& tokens, std::vector<Finding>& findings) {
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const Token& before = tokens[i - 1];
    if (tokens[i].text != "[") continue;
    const bool value = (before.kind == Token::Kind::kWord && before.text != "return") || before.text == "]" ||
                       before.text == ")" || before.text == "]]";
    if (!value) find(findings, tokens[i], "a lambda");
  }
}

void check_pointers(const std::vector<Token>& tokens, std::vector<Finding>& findings) {
  const auto types = type_names(tokens);
  constexpr std::array<std::string_view, 10> kEnds = {"(", ")", ",", ";", "{", "}", "<", ">", "=", "return"};
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const std::string& sign = tokens[i].text;
    if (sign != "*" && sign != "&") continue;
    std::size_t type = i - 1;
    while (type > 0 && (tokens[type].text == "const" || tokens[type].text == "*")) --type;
    if (types.find(tokens[type].text) == types.end()) continue;
    bool qualified = false;
    for (std::size_t j = type; !contains(kEnds, tokens[j].text); --j) {
      qualified |= contains(kAddressSpaces, tokens[j].text);
      if (j == 0) break;
    }
    if (!qualified) find(findings, tokens[i], "a pointer or reference without an address space");
  }
}

struct Function {
  std::string name;
  std::size_t open = 0;  // of its body
  std::size_t close = 0;
};

// name ( ... ) {
std::vector<Function> functions_of(const std::vector<Token>& tokens) {
  std::vector<Function> result;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i].kind != Token::Kind::kWord || tokens[i + 1].text != "(") continue;
    const std::size_t close = closing(tokens, i + 1);
    if (close + 1 >= tokens.size() || tokens[close + 1].text != "{") continue;
    constexpr std::array<std::string_view, 5> kStatements = {"if", "for", "while", "switch", "constexpr"};
    if (contains(kStatements, tokens[i].text)) continue;
    result.push_back({tokens[i].text, close + 1, closing(tokens, close + 1)});
  }
  return result;
}

void check_recursion(const std::vector<Token>& tokens, std::vector<Finding>& findings) {
  const std::vector<Function> functions = functions_of(tokens);
  std::map<std::string, std::set<std::string>> calls;
  for (const Function& function : functions) calls[function.name];
  for (const Function& function : functions) {
    for (std::size_t i = function.open; i < function.close; ++i) {
      if (tokens[i + 1].text == "(" && calls.count(tokens[i].text) != 0) calls[function.name].insert(tokens[i].text);
    }
  }
  for (const Function& function : functions) {
    std::set<std::string> reached;
    const std::function<void(const std::string&)> reach = [&](const std::string& name) {
      for (const std::string& next : calls[name]) {
        if (reached.insert(next).second) reach(next);
      }
    };
    reach(function.name);
    if (reached.count(function.name) != 0) find(findings, tokens[function.open], "recursion: " + function.name);
  }
}

// threadgroup float tile[64]; in a body: in the executor, every thread would have its own.
void check_threadgroup_variables(const std::vector<Token>& tokens, std::vector<Finding>& findings) {
  for (const Function& function : functions_of(tokens)) {
    for (std::size_t i = function.open; i < function.close; ++i) {
      if (tokens[i].text != "threadgroup") continue;
      bool pointer = false;
      std::size_t end = i;
      while (tokens[end].text != ";" && tokens[end].text != "=" && tokens[end].text != ">" && tokens[end].text != ")") {
        pointer |= tokens[end].text == "*" || tokens[end].text == "&";
        ++end;
      }
      if (!pointer) find(findings, tokens[i], "threadgroup memory that is not a parameter of the kernel");
    }
  }
}

}  // namespace

void check_dialect(const std::vector<Token>& tokens, std::vector<Finding>& findings) {
  check_words(tokens, findings);
  check_lambdas(tokens, findings);
  check_pointers(tokens, findings);
  check_recursion(tokens, findings);
  check_threadgroup_variables(tokens, findings);
}

}  // namespace thalweg::metal
