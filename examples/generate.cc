// Text from a model file: generate MODEL PROMPT

#include <cstdio>
#include <string_view>

#include "thalweg/error.h"
#include "thalweg/model.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: generate MODEL PROMPT\n");
    return 2;
  }
  try {
    thalweg::Model model = thalweg::Model::load(argv[1]);
    thalweg::Sequence sequence = model.start();
    model.generate(sequence, model.tokenize(argv[2]), {}, 24, [](std::string_view bytes) {
      std::fwrite(bytes.data(), 1, bytes.size(), stdout);
      return std::fflush(stdout) == 0;
    });
    std::printf("\n");
    return 0;
  } catch (const thalweg::Error& refused) {
    std::fprintf(stderr, "%s\n", refused.what());
    return 1;
  }
}
