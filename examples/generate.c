// Text from a model file, in C: generate MODEL PROMPT

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thalweg/thalweg.h"

static bool print(void* user, const char* bytes, size_t count) {
  (void)user;
  return fwrite(bytes, 1, count, stdout) == count && fflush(stdout) == 0;
}

static int refused(void) {
  fprintf(stderr, "%s\n", thalweg_error_message());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: generate MODEL PROMPT\n");
    return 2;
  }
  if (thalweg_abi_version() < THALWEG_ABI_VERSION) {
    fprintf(stderr, "this library is older than the one that the program was compiled for\n");
    return 1;
  }
  thalweg_model* model = NULL;
  thalweg_sequence* sequence = NULL;
  int32_t prompt[512];
  size_t count = 0;
  thalweg_generated result;
  thalweg_generated_init(&result);

  int status = 1;
  if (thalweg_model_load(argv[1], NULL, &model) != THALWEG_OK) {
    status = refused();
  } else if (thalweg_tokenize(model, argv[2], strlen(argv[2]), true, prompt, 512, &count) != THALWEG_OK) {
    status = refused();
  } else if (count > 512) {
    fprintf(stderr, "the prompt has %zu tokens, more than 512\n", count);
  } else if (thalweg_sequence_start(model, &sequence) != THALWEG_OK ||
             thalweg_generate(model, sequence, prompt, count, NULL, 24, print, NULL, &result) != THALWEG_OK) {
    status = refused();
  } else {
    printf("\n%lld tokens, %.0f tokens/s\n", (long long)result.tokens, (double)result.steps / result.decode_seconds);
    status = 0;
  }
  thalweg_sequence_free(sequence);
  thalweg_model_free(model);
  return status;
}
