// The C ABI from C: test_capi MODEL FOLDER

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thalweg/thalweg.h"

static int failures = 0;

static void check(bool holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: %s (last error: %s)\n", line, what, thalweg_error_message());
  failures++;
}
#define CHECK(condition) check((condition), #condition, __LINE__)

static const thalweg_device kCpu = {THALWEG_CPU, 0};

static thalweg_tensor f32(void* data, int32_t rank, const int64_t* shape) {
  return thalweg_tensor_of(data, THALWEG_F32, kCpu, rank, shape);
}

static void test_dtypes(void) {
  CHECK(thalweg_abi_version() == THALWEG_ABI_VERSION);
  CHECK(strcmp(thalweg_dtype_name(THALWEG_Q4_K), "Q4_K") == 0);
  CHECK(thalweg_dtype_name(17) == NULL);
  CHECK(thalweg_bytes_of(THALWEG_Q4_K, 512) == 288);
  CHECK(thalweg_bytes_of(-1, 512) == -1);
  CHECK(thalweg_can_pack(THALWEG_Q6_K) && !thalweg_can_pack(THALWEG_I32) && !thalweg_can_pack(99));
  CHECK(thalweg_tensor_of(NULL, THALWEG_F32, kCpu, 0, NULL).rank == 0);
}

static void test_devices(void) {
  bool available = false;
  const char* reason = NULL;
  CHECK(thalweg_device_type_available(THALWEG_CPU, &available, &reason) == THALWEG_OK);
  CHECK(available && strcmp(reason, "") == 0);
  CHECK(thalweg_device_type_available(7, &available, &reason) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "type") == 0);
  CHECK(thalweg_device_type_available(THALWEG_METAL, &available, &reason) == THALWEG_OK);
  CHECK(available || strlen(reason) > 0);
  CHECK(thalweg_synchronize(NULL) == THALWEG_OK);

  thalweg_memory* memory = NULL;
  CHECK(thalweg_memory_create(kCpu, 16, &memory) == THALWEG_OK);
  CHECK(thalweg_memory_bytes(memory) == 16 && ((uintptr_t)thalweg_memory_data(memory) & 255U) == 0);
  int32_t out[4] = {1, 2, 3, 4}, in[4] = {0};
  CHECK(thalweg_copy_to_device(NULL, thalweg_memory_data(memory), out, sizeof out) == THALWEG_OK);
  CHECK(thalweg_copy_to_host(NULL, in, thalweg_memory_data(memory), sizeof in) == THALWEG_OK);
  CHECK(memcmp(out, in, sizeof in) == 0);
  thalweg_memory_free(memory);
  thalweg_memory_free(NULL);
  CHECK(thalweg_memory_create((thalweg_device){9, 0}, 16, &memory) == THALWEG_INVALID);
}

// y = x W^T, and the errors of calls that break its contract.
static void test_linear(void) {
  float x[2][3] = {{1, 2, 3}, {4, 5, 6}}, weight[2][3] = {{1, 0, -1}, {2, 1, 0}}, bias[2] = {10, 20}, y[2][2] = {{0}};
  thalweg_linear_args args;
  thalweg_linear_args_init(&args);
  args.x = f32(x, 2, (const int64_t[]){2, 3});
  args.weight = f32(weight, 2, (const int64_t[]){2, 3});
  args.bias = f32(bias, 1, (const int64_t[]){2});
  args.y = f32(y, 2, (const int64_t[]){2, 2});
  thalweg_stream one_thread;
  thalweg_stream_init(&one_thread);
  one_thread.threads = 1;
  size_t bytes = 0;
  CHECK(thalweg_linear_workspace_size(&args, &one_thread, &bytes) == THALWEG_OK);
  void* workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
  CHECK(thalweg_linear(&args, workspace, bytes, &one_thread) == THALWEG_OK);
  CHECK(y[0][0] == 8 && y[0][1] == 24 && y[1][0] == 8 && y[1][1] == 33);

  const char* text = NULL;
  CHECK(thalweg_linear_explain(&args, NULL, &text) == THALWEG_OK);
  CHECK(strstr(text, "runs") != NULL);

  args.weight = f32(weight, 2, (const int64_t[]){2, 2});
  CHECK(thalweg_linear(&args, workspace, bytes, NULL) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_operation(), "linear") == 0);
  CHECK(strcmp(thalweg_error_argument(), "weight") == 0);
  CHECK(strstr(thalweg_error_message(), "linear: weight: expected") != NULL);
  args.weight = f32(weight, 2, (const int64_t[]){2, 3});
  args.weight.dtype = 77;
  CHECK(thalweg_linear(&args, workspace, bytes, NULL) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "weight") == 0);
  args.weight.dtype = THALWEG_F32;
  args.weight.rank = 6;
  CHECK(thalweg_linear(&args, workspace, bytes, NULL) == THALWEG_INVALID);
  args.weight.rank = 2;
  // An optional tensor of a rank that does not exist is refused, and not taken for an absent one.
  args.bias = f32(bias, 6, (const int64_t[]){1, 1, 1, 1, 1, 2});
  CHECK(thalweg_linear(&args, workspace, bytes, NULL) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "bias") == 0);
  CHECK(strstr(thalweg_error_message(), "linear: bias: expected a rank from 0 to 5, got 6") != NULL);
  args.bias = f32(bias, -1, (const int64_t[]){2});
  CHECK(thalweg_linear(&args, workspace, bytes, NULL) == THALWEG_INVALID);
  args.bias = f32(bias, 1, (const int64_t[]){2});
  args.precision = 5;
  CHECK(thalweg_linear(&args, workspace, bytes, NULL) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "precision") == 0);
  CHECK(thalweg_linear(NULL, workspace, bytes, NULL) == THALWEG_INVALID);
  CHECK(y[1][1] == 33);
  free(workspace);
}

// Versions, and structs whose size is none that they have had.
static void test_versions(void) {
  CHECK(thalweg_abi_version() == THALWEG_ABI_VERSION);
  CHECK(strcmp(thalweg_version(), THALWEG_VERSION_STRING) == 0);
  CHECK(THALWEG_VERSION_NUMBER ==
        THALWEG_VERSION_MAJOR * 1000000 + THALWEG_VERSION_MINOR * 1000 + THALWEG_VERSION_PATCH);
  thalweg_add_args args;
  memset(&args, 0x5A, sizeof args);
  thalweg_add_args_init(&args);
  CHECK(args.struct_size == sizeof args && args.y.rank == 0 && args.y.reserved == 0);
  size_t bytes = 0;
  args.struct_size = 0;
  CHECK(thalweg_add_workspace_size(&args, NULL, &bytes) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_operation(), "add") == 0 && strcmp(thalweg_error_argument(), "args.struct_size") == 0);
  args.struct_size = sizeof args + 8;
  CHECK(thalweg_add_workspace_size(&args, NULL, &bytes) == THALWEG_INVALID);
  args.struct_size = sizeof args;
  thalweg_stream stream;
  memset(&stream, 0, sizeof stream);
  CHECK(thalweg_add_workspace_size(&args, &stream, &bytes) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "stream.struct_size") == 0);
}

// Threads of the caller's own: here its only one.
static void run_in_turn(void* user, int32_t workers, void (*work)(void* context, int32_t worker), void* context) {
  ++*(int*)user;
  for (int32_t i = workers - 1; i >= 0; --i) work(context, i);
}

static void test_pool(void) {
  enum { T = 64, D = 4096 };
  static float a[T * D], y[T * D];
  for (int i = 0; i < T * D; ++i) a[i] = (float)(i % 257);
  int calls = 0;
  const thalweg_thread_pool pool = {run_in_turn, &calls};
  thalweg_stream stream;
  thalweg_stream_init(&stream);
  stream.threads = 4;
  stream.pool = &pool;
  thalweg_add_args args;
  thalweg_add_args_init(&args);
  args.a = args.b = f32(a, 2, (const int64_t[]){T, D});
  args.y = f32(y, 2, (const int64_t[]){T, D});
  size_t bytes = 0;
  CHECK(thalweg_add_workspace_size(&args, &stream, &bytes) == THALWEG_OK);
  thalweg_memory* workspace = NULL;
  CHECK(thalweg_memory_create(kCpu, bytes, &workspace) == THALWEG_OK);
  CHECK(thalweg_add(&args, thalweg_memory_data(workspace), bytes, &stream) == THALWEG_OK);
  thalweg_memory_free(workspace);
  CHECK(calls == 1);
  int wrong = 0;
  for (int i = 0; i < T * D; ++i) wrong += y[i] != 2.0F * a[i];
  CHECK(wrong == 0);
  const thalweg_thread_pool none = {NULL, NULL};
  stream.pool = &none;
  CHECK(thalweg_add(&args, NULL, 0, &stream) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "stream.pool.run") == 0);
}

// One token of the rule, computed here: S = beta v k^T, o = scale S q.
static void test_recurrent(void) {
  enum { K = 16, V = 16 };
  float q[K], k[K], v[V], g = -1.0F, beta = 0.5F, state[V][K], o[V];
  for (int i = 0; i < K; ++i) {
    q[i] = (float)i;
    k[i] = i == 3 ? 1.0F : 0.0F;
    v[i] = (float)(i + 1);
  }
  const float scale = 2.0F;
  thalweg_recurrent_gated_delta_rule_args args;
  thalweg_recurrent_gated_delta_rule_args_init(&args);
  CHECK(args.qk_norm_eps > 0 && args.head_map == THALWEG_HEAD_MAP_UNSET);
  args.q = f32(q, 4, (const int64_t[]){1, 1, 1, K});
  args.k = f32(k, 4, (const int64_t[]){1, 1, 1, K});
  args.v = f32(v, 4, (const int64_t[]){1, 1, 1, V});
  args.g = f32(&g, 3, (const int64_t[]){1, 1, 1});
  args.beta = f32(&beta, 3, (const int64_t[]){1, 1, 1});
  args.o = f32(o, 4, (const int64_t[]){1, 1, 1, V});
  args.final_state = f32(state, 4, (const int64_t[]){1, 1, V, K});
  args.scale = &scale;
  size_t bytes = 0;
  CHECK(thalweg_recurrent_gated_delta_rule_workspace_size(&args, NULL, &bytes) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "head_map") == 0);
  args.head_map = THALWEG_HEAD_MAP_GROUPED;
  CHECK(thalweg_recurrent_gated_delta_rule_workspace_size(&args, NULL, &bytes) == THALWEG_OK);
  thalweg_memory* workspace = NULL;
  CHECK(thalweg_memory_create(kCpu, bytes, &workspace) == THALWEG_OK);
  CHECK(thalweg_recurrent_gated_delta_rule(&args, thalweg_memory_data(workspace), bytes, NULL) == THALWEG_OK);
  for (int i = 0; i < V; ++i) {
    CHECK(fabsf(state[i][3] - 0.5F * v[i]) < 1e-6F && fabsf(state[i][4]) < 1e-6F);
    CHECK(fabsf(o[i] - scale * 0.5F * v[i] * q[3]) < 1e-4F);
  }
  thalweg_memory_free(workspace);
}

typedef struct received {
  char text[512];
  size_t length;
  size_t stop_at;
} received;

static bool keep_bytes(void* user, const char* bytes, size_t count) {
  received* to = user;
  if (to->length + count >= sizeof to->text) return false;
  memcpy(to->text + to->length, bytes, count);
  to->length += count;
  to->text[to->length] = '\0';
  return to->length < to->stop_at;
}

static void test_model(const char* path, const char* folder) {
  const char* text = "Anna put the red ball in the kitchen. Tom took the lamp to the attic. Where is the red ball?";
  thalweg_model_options options;
  thalweg_model_options_init(&options);
  options.sequences = 2;
  options.context = 256;
  thalweg_model* model = NULL;
  CHECK(thalweg_model_load("/no/such/file.gguf", &options, &model) == THALWEG_INVALID && model == NULL);
  CHECK(thalweg_model_load(path, &options, &model) == THALWEG_OK);
  if (model == NULL) return;
  CHECK(thalweg_model_context(model) == 256);

  int32_t prompt[64];
  size_t count = 0, again = 0;
  CHECK(thalweg_tokenize(model, text, strlen(text), true, NULL, 0, &count) == THALWEG_OK && count > 10 && count <= 64);
  CHECK(thalweg_tokenize(model, text, strlen(text), true, prompt, 64, &again) == THALWEG_OK && again == count);
  char back[256];
  CHECK(thalweg_detokenize(model, prompt, count, back, sizeof back, &again) == THALWEG_OK);
  CHECK(again == strlen(text) && memcmp(back, text, again) == 0);

  thalweg_sequence *first = NULL, *second = NULL, *third = NULL;
  CHECK(thalweg_sequence_start(model, &first) == THALWEG_OK);
  CHECK(thalweg_sequence_start(model, &second) == THALWEG_OK);
  CHECK(thalweg_sequence_start(model, &third) == THALWEG_INVALID);

  received whole = {.stop_at = 500};
  thalweg_generated result;
  thalweg_generated_init(&result);
  CHECK(thalweg_generate(model, first, prompt, count, NULL, 24, keep_bytes, &whole, &result) == THALWEG_OK);
  CHECK(strstr(whole.text, "kitchen") != NULL);
  CHECK(result.reason == THALWEG_STOP_END_TOKEN && result.prompt_tokens == (int64_t)count);
  received part = {.stop_at = 5};
  CHECK(thalweg_sequence_clear(first) == THALWEG_OK);
  CHECK(thalweg_generate(model, first, prompt, count, NULL, 24, keep_bytes, &part, &result) == THALWEG_OK);
  CHECK(result.reason == THALWEG_STOP_CALLER && strncmp(part.text, whole.text, part.length) == 0);

  // Step by step, from a state that was saved and restored: the same tokens.
  CHECK(thalweg_sequence_clear(first) == THALWEG_OK);
  CHECK(thalweg_prefill(model, first, prompt, count) == THALWEG_OK);
  char file[512];
  snprintf(file, sizeof file, "%s/capi_test.state", folder);
  CHECK(thalweg_sequence_save(first, file) == THALWEG_OK);
  CHECK(thalweg_sequence_restore(second, file) == THALWEG_OK);
  remove(file);
  CHECK(thalweg_sequence_restore(second, file) == THALWEG_INVALID);
  thalweg_sequence* both[2] = {first, second};
  received by_hand = {.stop_at = 500};
  for (int i = 0; i < 24; ++i) {
    int32_t tokens[2];
    CHECK(thalweg_sample(model, first, NULL, &tokens[0]) == THALWEG_OK);
    CHECK(thalweg_sample(model, second, NULL, &tokens[1]) == THALWEG_OK);
    CHECK(tokens[0] == tokens[1]);
    if (thalweg_model_is_end_token(model, tokens[0])) break;
    char bytes[64];
    CHECK(thalweg_detokenize(model, tokens, 1, bytes, sizeof bytes, &again) == THALWEG_OK);
    keep_bytes(&by_hand, bytes, again);
    CHECK(thalweg_step(model, both, tokens, 2) == THALWEG_OK);
  }
  CHECK(strcmp(by_hand.text, whole.text) == 0);
  size_t first_size = 0, second_size = 0;
  const float* logits = thalweg_sequence_logits(first, &first_size);
  const float* others = thalweg_sequence_logits(second, &second_size);
  CHECK(first_size == (size_t)thalweg_model_vocabulary(model) && first_size == second_size);
  CHECK(memcmp(logits, others, first_size * sizeof *logits) == 0);

  const int32_t outside = (int32_t)thalweg_model_vocabulary(model);
  CHECK(thalweg_prefill(model, first, &outside, 1) == THALWEG_INVALID);
  thalweg_model_free(model);  // before its sequences
  thalweg_sequence_free(first);
  thalweg_sequence_free(second);
}

// Reads an answer to its end; returns the tokens that were generated.
static int64_t read_answer(thalweg_answer* answer, received* text, int32_t* finish, int64_t* cached) {
  thalweg_output output;
  thalweg_output_init(&output);
  int64_t with_logprobs = 0;
  for (bool more = true;;) {
    CHECK(thalweg_answer_next(answer, &output, &more) == THALWEG_OK);
    if (!more) break;
    keep_bytes(text, output.text, output.text_size);
    for (size_t i = 0; i < output.token_count && output.logprobs != NULL; ++i) {
      CHECK(output.logprobs[i] <= 0 && output.likeliest_tokens[2 * i] == output.tokens[i]);
      CHECK(output.likeliest_logprobs[2 * i] >= output.likeliest_logprobs[2 * i + 1]);
      ++with_logprobs;
    }
    *finish = output.finish;
    *cached = output.cached_tokens;
  }
  CHECK(output.logprobs == NULL || with_logprobs == output.generated_tokens);
  return output.generated_tokens;
}

static void test_engine(const char* path, const char* folder) {
  const char* text =
      "Anna put the red ball in the kitchen. Tom took the lamp to the attic. Anna went to the garden. Tom went to the "
      "office. Anna took the green book there. Tom put the lamp in the hall. Anna went back to the kitchen. Tom went "
      "to the garden. Anna took the lamp to the attic. Tom took the green book to the hall. Anna went to the office. "
      "Where is the red ball?";
  thalweg_model_options model_options;
  thalweg_model_options_init(&model_options);
  model_options.sequences = 2;
  model_options.context = 512;
  CHECK(model_options.batch_invariant == 0);
  model_options.batch_invariant = 1;
  thalweg_model* model = NULL;
  CHECK(thalweg_model_load(path, &model_options, &model) == THALWEG_OK);
  if (model == NULL) return;
  char cache[512];
  snprintf(cache, sizeof cache, "%s/capi_test.cache", folder);
  thalweg_engine_options options;
  thalweg_engine_options_init(&options);
  thalweg_engine* engine = NULL;
  options.prompt_share = 2;
  CHECK(thalweg_engine_create(model, &options, &engine) == THALWEG_INVALID && engine == NULL);
  CHECK(strcmp(thalweg_error_argument(), "prompt_share") == 0);
  options.prompt_share = 0.3;
  options.cache_dir = "/proc/nowhere";
  CHECK(thalweg_engine_create(model, &options, &engine) == THALWEG_INVALID && engine == NULL);
  thalweg_sequence* sequence = NULL;  // the model is still there
  CHECK(thalweg_sequence_start(model, &sequence) == THALWEG_OK);
  thalweg_sequence_free(sequence);
  options.cache_dir = cache;
  CHECK(!options.cache_answers);
  options.cache_answers = true;
  CHECK(thalweg_engine_create(model, &options, &engine) == THALWEG_OK);
  CHECK(thalweg_sequence_start(model, &sequence) == THALWEG_INVALID);
  CHECK(thalweg_model_context(model) == 512);

  int32_t prompt[256];
  size_t count = 0;
  CHECK(thalweg_tokenize(model, text, strlen(text), true, prompt, 256, &count) == THALWEG_OK && count > 64 &&
        count < 256);
  thalweg_request request;
  thalweg_request_init(&request);
  request.prompt = prompt;
  thalweg_answer* answer = NULL;
  CHECK(thalweg_submit(engine, &request, &answer) == THALWEG_INVALID && answer == NULL);  // no tokens
  request.prompt_count = count;
  request.max_tokens = 16;
  request.logprobs = 2;
  received first = {.stop_at = 500};
  received second = {.stop_at = 500};
  int32_t finish = THALWEG_FINISH_NONE;
  int64_t cached = -1;
  CHECK(thalweg_submit(engine, &request, &answer) == THALWEG_OK);
  const int64_t generated = read_answer(answer, &first, &finish, &cached);
  CHECK(finish == THALWEG_FINISH_END_TOKEN && strstr(first.text, "kitchen") != NULL);
  thalweg_answer_free(answer);
  CHECK(thalweg_submit(engine, &request, &answer) == THALWEG_OK);
  CHECK(read_answer(answer, &second, &finish, &cached) == generated && cached >= 64);
  CHECK(strcmp(first.text, second.text) == 0);
  thalweg_answer_free(answer);

  const char* stops[] = {"kitchen"};
  request.stop = stops;
  request.stop_count = 1;
  received stopped = {.stop_at = 500};
  CHECK(thalweg_submit(engine, &request, &answer) == THALWEG_OK);
  read_answer(answer, &stopped, &finish, &cached);
  CHECK(finish == THALWEG_FINISH_STOP && strstr(stopped.text, "kitchen") == NULL);
  thalweg_answer_free(answer);

  request.stop_count = 0;
  request.ignore_end = true;
  request.max_tokens = -1;
  CHECK(thalweg_submit(engine, &request, &answer) == THALWEG_OK);
  CHECK(thalweg_answer_cancel(answer) == THALWEG_OK);
  read_answer(answer, &stopped, &finish, &cached);
  CHECK(finish == THALWEG_FINISH_CANCELLED);
  thalweg_answer_free(answer);

  bool finished = false;
  CHECK(thalweg_engine_drain(engine, 10, &finished) == THALWEG_OK && finished);
  CHECK(thalweg_submit(engine, &request, &answer) == THALWEG_REFUSED);
  thalweg_engine_counts counts;
  thalweg_engine_counts_init(&counts);
  CHECK(thalweg_engine_count(engine, &counts) == THALWEG_OK);
  CHECK(counts.requests == 4 && counts.finished == 3 && counts.cancelled == 1 && counts.refused == 1);
  CHECK(counts.cache_bytes > 0 && counts.cache_checkpoints > 0);
  thalweg_engine_free(engine);
  thalweg_model_free(model);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  test_dtypes();
  test_devices();
  test_versions();
  test_linear();
  test_pool();
  test_recurrent();
  test_model(argv[1], argv[2]);
  test_engine(argv[1], argv[2]);
  if (failures == 0) printf("all passed\n");
  return failures == 0 ? 0 : 1;
}
