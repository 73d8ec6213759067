// metal_translate NAME IN OUT: translates preprocessed Metal source to C++ for the executor: removes attributes and
// adds a caller for each kernel. Exits with 1 and a list of findings if the source is outside the dialect.

#include <fstream>
#include <iostream>
#include <sstream>

#include "metal/host/dialect.h"

namespace thalweg::metal {
namespace {

// The source without attributes. Line markers remain, so that compiler messages name the .metal file.
std::string without_attributes(std::string_view text) {
  std::string result;
  std::size_t at = 0;
  while (true) {
    const std::size_t open = text.find("[[", at);
    result += text.substr(at, open - at);
    if (open == std::string_view::npos) return result;
    at = text.find("]]", open) + 2;
  }
}

std::string argument_of(const KernelParameter& parameter) {
  if (parameter.attribute == "buffer" || parameter.attribute == "threadgroup") {
    const std::string memory = (parameter.attribute == "buffer" ? "memory.buffer[" : "memory.scratch[") +
                               std::to_string(parameter.index) + "]";
    const std::string pointer = parameter.type + (parameter.reference ? "*" : "");
    return (parameter.reference ? "*" : "") + ("thalweg::metal::argument<" + pointer + ">(" + memory + ")");
  }
  const std::string value = "position." + parameter.attribute;
  return parameter.type == "uint3" ? "uint3{" + value + "[0], " + value + "[1], " + value + "[2]}" : value;
}

std::string bindings(const std::string& name, const Program& program) {
  std::ostringstream out;
  out << "\nnamespace {\n";
  for (const KernelDeclaration& kernel : program.kernels) {
    out << "void call_" << kernel.name
        << "(const thalweg::metal::Memory& memory, const thalweg::metal::ThreadPosition& position) {\n"
        << "  (void)memory;\n  (void)position;\n  " << kernel.name << "(";
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
      out << (i > 0 ? ",\n      " : "") << argument_of(kernel.parameters[i]);
    }
    out << ");\n}\n";
  }
  out << "}  // namespace\n}  // namespace program_" << name
      << "\n\nextern const thalweg::metal::CompiledProgram program_" << name
      << "_table;\nconst thalweg::metal::CompiledProgram program_" << name << "_table = {\n  {\n";
  for (const KernelDeclaration& kernel : program.kernels) {
    unsigned buffers = 0;
    unsigned writable = 0;
    for (const KernelParameter& parameter : kernel.parameters) {
      if (parameter.attribute != "buffer") continue;
      buffers |= 1U << parameter.index;
      if (parameter.writable) writable |= 1U << parameter.index;
    }
    out << "    {\"" << kernel.name << "\", program_" << name << "::call_" << kernel.name << ", " << buffers << "u, "
        << writable << "u, " << kernel.max_threads << "u},\n";
  }
  out << "  },\n  {\n";
  for (const FunctionConstant& constant : program.constants) {
    out << "    {\"" << constant.name << "\", thalweg::metal::constant_address(&program_" << name
        << "::" << constant.name << ")},\n";
  }
  out << "  },\n};\n";
  return out.str();
}

int translate(const std::string& name, const char* from, const char* to) {
  std::ifstream in(from);
  std::stringstream text;
  text << in.rdbuf();
  const std::vector<Token> tokens = tokenize(text.str());
  std::vector<Finding> findings;
  const Program program = read_program(tokens, findings);
  check_dialect(tokens, findings);
  for (const Finding& finding : findings) {
    std::cerr << finding.file << ":" << finding.line << ": not in our dialect of Metal: " << finding.text << "\n";
  }
  if (!in || !findings.empty()) return 1;
  std::ofstream out(to);
  out << "#include <metal_stdlib>\n#include \"metal/host/compiled_program.h\"\n#include "
         "\"metal/host/address_spaces.h\"\n"
      << "namespace program_" << name << " {\n"
      << without_attributes(text.str()) << bindings(name, program);
  return out ? 0 : 1;
}

}  // namespace
}  // namespace thalweg::metal

int main(int count, char** arguments) {
  if (count != 4) return 2;
  return thalweg::metal::translate(arguments[1], arguments[2], arguments[3]);
}
