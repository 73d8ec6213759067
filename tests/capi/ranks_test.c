// Ranks from C, each on a thread of this process: test_capi_ranks MODEL [MODEL_OF_MANY_BLOCKS]
//
// The model in the box can share prompts alone: ranks cannot cut its columns. The other one is of `thalweg synth`.

#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "thalweg/thalweg_ranks.h"

enum { kTokens = 8, kPrompt = 1000 };

static int failures = 0;
static pthread_mutex_t failures_mutex = PTHREAD_MUTEX_INITIALIZER;

static void check(bool holds, const char* what, int line) {
  if (holds) return;
  pthread_mutex_lock(&failures_mutex);
  fprintf(stderr, "line %d: %s (last error: %s)\n", line, what, thalweg_error_message());
  failures++;
  pthread_mutex_unlock(&failures_mutex);
}
#define CHECK(condition) check((condition), #condition, __LINE__)

// A port that was free a moment ago.
static int32_t free_port(void) {
  struct sockaddr_in address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const bool found = listener >= 0 && bind(listener, (struct sockaddr*)&address, size) == 0 &&
                     getsockname(listener, (struct sockaddr*)&address, &size) == 0;
  CHECK(found);
  if (listener >= 0) close(listener);
  return found ? ntohs(address.sin_port) : 29500;
}

typedef struct {
  const char* path;
  thalweg_rank_options connect;
  int32_t split;
  bool leaves;  // loads the model, and goes
} rank_task;

// The model of a rank; *ranks may be freed before it.
static thalweg_model* load(const char* path, thalweg_ranks* ranks, int32_t split) {
  thalweg_model_options options;
  thalweg_model_options_init(&options);
  CHECK(options.ranks == NULL && options.rank_split == THALWEG_SPLIT_TENSOR);
  options.threads = 1;
  options.context = 1024;
  options.exact = true;
  options.device_type = THALWEG_CPU;
  options.ranks = ranks;
  options.rank_split = split;
  thalweg_model* model = NULL;
  CHECK(thalweg_model_load(path, &options, &model) == THALWEG_OK && model != NULL);
  return model;
}

static void* run_rank_1(void* argument) {
  const rank_task* task = argument;
  thalweg_ranks* ranks = NULL;
  CHECK(thalweg_ranks_connect(&task->connect, &ranks) == THALWEG_OK);
  if (ranks == NULL) return NULL;
  CHECK(thalweg_ranks_rank(ranks) == 1 && thalweg_ranks_count(ranks) == 2 && thalweg_ranks_local_rank(ranks) == 1);
  thalweg_model* model = load(task->path, ranks, task->split);
  thalweg_ranks_free(ranks);
  if (model == NULL) return NULL;
  thalweg_sequence* sequence = NULL;
  CHECK(thalweg_sequence_start(model, &sequence) == THALWEG_INVALID && sequence == NULL);  // rank 0 leads
  if (!task->leaves) CHECK(thalweg_model_follow(model) == THALWEG_OK);
  thalweg_model_free(model);
  return NULL;
}

static rank_task task_of(const char* path, int32_t split, bool leaves) {
  rank_task task = {.path = path, .split = split, .leaves = leaves};
  thalweg_rank_options_init(&task.connect);
  task.connect.rank = task.connect.local_rank = 1;
  task.connect.count = 2;
  task.connect.port = free_port();
  task.connect.timeout_seconds = 20;
  return task;
}

// Starts rank 1 on a thread, and connects rank 0 with it.
static thalweg_ranks* start(rank_task* task, pthread_t* thread) {
  thalweg_rank_options options = task->connect;
  options.rank = options.local_rank = 0;
  thalweg_ranks* ranks = NULL;
  CHECK(pthread_create(thread, NULL, run_rank_1, task) == 0);
  CHECK(thalweg_ranks_connect(&options, &ranks) == THALWEG_OK);
  return ranks;
}

// A prompt that two ranks share, if they share prompts. Returns its length.
static size_t prompt_of(const thalweg_model* model, int32_t split, int32_t prompt[kPrompt]) {
  const char* text = "Anna put the red ball in the kitchen. Where is the red ball?";
  size_t count = 0;
  CHECK(thalweg_tokenize(model, text, strlen(text), true, prompt, kPrompt, &count) == THALWEG_OK && count < 256);
  if (split == THALWEG_SPLIT_TENSOR) return count;
  size_t all = count;
  for (; all < 600; all += count) memcpy(prompt + all, prompt, count * sizeof *prompt);
  return all;
}

// The likeliest tokens after a prompt, end tokens aside; their number.
static int generate(thalweg_model* model, int32_t split, int32_t tokens[kTokens]) {
  int32_t prompt[kPrompt];
  const size_t count = prompt_of(model, split, prompt);
  thalweg_sequence* sequence = NULL;
  CHECK(thalweg_sequence_start(model, &sequence) == THALWEG_OK);
  CHECK(thalweg_generate(model, sequence, prompt, count, NULL, kTokens, NULL, NULL, NULL) == THALWEG_OK);
  size_t all = 0;
  const int32_t* there = thalweg_sequence_tokens(sequence, &all);
  const int generated = (int)(all - count);
  CHECK(generated > 0 && generated <= kTokens);
  for (int i = 0; i < generated; ++i) tokens[i] = there[count + (size_t)i];
  thalweg_sequence_free(sequence);
  return generated;
}

static size_t failure_of(const thalweg_ranks* ranks, char* text, size_t capacity) {
  size_t count = 0;
  CHECK(thalweg_ranks_failure(ranks, text, capacity - 1, &count) == THALWEG_OK && count < capacity);
  text[count] = 0;
  return count;
}

static void test_same_tokens(const char* path, int32_t split) {
  int32_t expected[kTokens], tokens[kTokens];
  thalweg_model* alone = load(path, NULL, split);
  if (alone == NULL) return;
  const int count = generate(alone, split, expected);
  CHECK(thalweg_model_follow(alone) == THALWEG_INVALID);
  thalweg_model_free(alone);

  rank_task task = task_of(path, split, false);
  pthread_t thread;
  thalweg_ranks* ranks = start(&task, &thread);
  if (ranks != NULL) {
    CHECK(thalweg_ranks_rank(ranks) == 0 && thalweg_ranks_count(ranks) == 2 && thalweg_ranks_local_rank(ranks) == 0);
    thalweg_model* model = load(path, ranks, split);
    if (model != NULL) {
      CHECK(generate(model, split, tokens) == count);
      CHECK(memcmp(tokens, expected, (size_t)count * sizeof *tokens) == 0);
      CHECK(thalweg_model_follow(model) == THALWEG_INVALID);  // it leads
      char text[256];
      CHECK(failure_of(ranks, text, sizeof text) == 0);
    }
    thalweg_model_free(model);
    thalweg_ranks_free(ranks);
  }
  pthread_join(thread, NULL);
}

static void test_lost_rank(const char* path) {
  rank_task task = task_of(path, THALWEG_SPLIT_SEQUENCE, true);
  pthread_t thread;
  thalweg_ranks* ranks = start(&task, &thread);
  if (ranks != NULL) {
    thalweg_model* model = load(path, ranks, THALWEG_SPLIT_SEQUENCE);
    thalweg_sequence* sequence = NULL;
    CHECK(model != NULL && thalweg_sequence_start(model, &sequence) == THALWEG_OK);
    if (sequence != NULL) {
      thalweg_status status = THALWEG_OK;
      const int32_t token = 1;
      for (int i = 0; i < 100 && status == THALWEG_OK; ++i) status = thalweg_prefill(model, sequence, &token, 1);
      CHECK(status == THALWEG_INVALID && strstr(thalweg_error_message(), "rank 1") != NULL);
      char text[256];
      CHECK(failure_of(ranks, text, sizeof text) > 0 && strstr(text, "rank 1") != NULL);
      size_t whole = 0;
      char few[4] = "...";
      CHECK(thalweg_ranks_failure(ranks, few, 2, &whole) == THALWEG_OK && whole == strlen(text) && few[2] == '.');
      CHECK(memcmp(few, text, 2) == 0);
    }
    thalweg_sequence_free(sequence);
    thalweg_model_free(model);
    thalweg_ranks_free(ranks);
  }
  pthread_join(thread, NULL);
}

static bool refuses(const thalweg_rank_options* options, const char* argument) {
  thalweg_ranks* ranks = NULL;
  return thalweg_ranks_connect(options, &ranks) == THALWEG_INVALID && ranks == NULL &&
         strcmp(thalweg_error_argument(), argument) == 0;
}

static void test_errors(const char* path) {
  thalweg_rank_options good, bad;
  thalweg_rank_options_init(&good);
  CHECK(good.count == 1 && good.port == 29500 && strcmp(good.address, "127.0.0.1") == 0);
  bad = good, bad.count = 0;
  CHECK(refuses(&bad, "count"));
  bad = good, bad.rank = 1;
  CHECK(refuses(&bad, "rank"));
  bad = good, bad.transport = 2;
  CHECK(refuses(&bad, "transport"));
  bad = good, bad.port = 65536;
  CHECK(refuses(&bad, "port"));
  bad = good, bad.timeout_seconds = 0;
  CHECK(refuses(&bad, "timeout_seconds"));
  bad = good, memset(bad.address, 'a', sizeof bad.address);
  CHECK(refuses(&bad, "address"));
  bad = good, bad.struct_size = 3;
  CHECK(refuses(&bad, "options.struct_size"));
  CHECK(refuses(NULL, "options"));
  CHECK(thalweg_ranks_connect(&good, NULL) == THALWEG_INVALID);
  bad = good, bad.count = 2, bad.port = free_port(), bad.timeout_seconds = 0.2;
  thalweg_ranks* ranks = NULL;
  CHECK(thalweg_ranks_connect(&bad, &ranks) == THALWEG_INVALID && ranks == NULL);  // nobody else comes

  CHECK(thalweg_ranks_connect(&good, &ranks) == THALWEG_OK);  // one of one
  CHECK(thalweg_ranks_failure(ranks, NULL, 1, &(size_t){0}) == THALWEG_INVALID);
  CHECK(thalweg_ranks_failure(ranks, NULL, 0, NULL) == THALWEG_INVALID);
  thalweg_ranks_free(ranks);
  thalweg_ranks_free(NULL);
  CHECK(thalweg_model_follow(NULL) == THALWEG_INVALID && strcmp(thalweg_error_argument(), "model") == 0);

  thalweg_model_options options;
  thalweg_model_options_init(&options);
  options.rank_split = 2;
  thalweg_model* model = NULL;
  CHECK(thalweg_model_load(path, &options, &model) == THALWEG_INVALID && model == NULL);
  CHECK(strcmp(thalweg_error_argument(), "rank_split") == 0);
}

static void test_environment(void) {
  thalweg_rank_options options;
  thalweg_rank_options_init(&options);
  setenv("WORLD_SIZE", "4", 1), setenv("RANK", "2", 1), setenv("LOCAL_RANK", "1", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1), setenv("MASTER_ADDR", "10.0.0.1", 1), setenv("MASTER_PORT", "29501", 1);
  CHECK(thalweg_ranks_from_environment(&options) == THALWEG_OK);
  CHECK(options.rank == 2 && options.count == 4 && options.local_rank == 1 && options.on_this_host == 2);
  CHECK(strcmp(options.address, "10.0.0.1") == 0 && options.port == 29501);
  CHECK(options.transport == THALWEG_RANKS_TCP && options.timeout_seconds == 30);
  setenv("RANK", "x", 1);
  CHECK(thalweg_ranks_from_environment(&options) == THALWEG_INVALID && options.rank == 2);
  CHECK(strcmp(thalweg_error_argument(), "RANK") == 0);
  setenv("RANK", "2", 1);
  char name[300];
  memset(name, 'a', sizeof name), name[299] = 0;
  setenv("MASTER_ADDR", name, 1);
  CHECK(thalweg_ranks_from_environment(&options) == THALWEG_INVALID);
  CHECK(strcmp(thalweg_error_argument(), "address") == 0);
  options.struct_size = 1;
  setenv("MASTER_ADDR", "10.0.0.1", 1);
  CHECK(thalweg_ranks_from_environment(&options) == THALWEG_INVALID);
  CHECK(thalweg_ranks_from_environment(NULL) == THALWEG_INVALID);
}

static void test_memory(const char* path) {
  thalweg_rank_memory one, two[2];
  thalweg_rank_memory_init(&one);
  thalweg_rank_memory_init(&two[0]);
  thalweg_rank_memory_init(&two[1]);
  CHECK(thalweg_rank_memory_of(path, 1, THALWEG_SPLIT_TENSOR, &one) == THALWEG_OK && one.weight_bytes > 0);
  CHECK(thalweg_rank_memory_of(path, 2, THALWEG_SPLIT_SEQUENCE, two) == THALWEG_OK);
  CHECK(two[0].state_bytes == one.state_bytes && two[1].weight_bytes == one.weight_bytes);
  CHECK(two[0].struct_size == sizeof one && two[1].struct_size == sizeof one);
  CHECK(thalweg_rank_memory_of(path, 2, THALWEG_SPLIT_TENSOR, two) == THALWEG_INVALID);  // no such cut of its columns
  CHECK(strstr(thalweg_error_message(), "ssm_out.weight") != NULL);
  CHECK(thalweg_rank_memory_of(path, 2, 7, two) == THALWEG_INVALID && strcmp(thalweg_error_argument(), "split") == 0);
  CHECK(thalweg_rank_memory_of(path, 0, 1, two) == THALWEG_INVALID && strcmp(thalweg_error_argument(), "count") == 0);
  CHECK(thalweg_rank_memory_of(path, 2, 1, NULL) == THALWEG_INVALID);
  CHECK(thalweg_rank_memory_of("/nowhere.gguf", 2, 1, two) == THALWEG_INVALID);
  two[1].struct_size = 0;
  two[0].weight_bytes = 5;
  CHECK(thalweg_rank_memory_of(path, 2, 1, two) == THALWEG_INVALID && two[0].weight_bytes == 5);
}

static void test_memory_of_shares(const char* path) {
  thalweg_rank_memory one, two[2];
  thalweg_rank_memory_init(&one);
  thalweg_rank_memory_init(&two[0]);
  thalweg_rank_memory_init(&two[1]);
  CHECK(thalweg_rank_memory_of(path, 1, THALWEG_SPLIT_TENSOR, &one) == THALWEG_OK);
  CHECK(thalweg_rank_memory_of(path, 2, THALWEG_SPLIT_TENSOR, two) == THALWEG_OK);
  CHECK(two[0].state_bytes + two[1].state_bytes == one.state_bytes);
  CHECK(two[0].weight_bytes < one.weight_bytes && two[1].weight_bytes < one.weight_bytes);
  CHECK(two[0].query_heads + two[1].query_heads == one.query_heads && one.query_heads > 0);
  CHECK(two[0].key_heads + two[1].key_heads == one.key_heads && one.key_heads > 0);
}

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  test_errors(argv[1]);
  test_memory(argv[1]);
  test_same_tokens(argv[1], THALWEG_SPLIT_SEQUENCE);
  test_lost_rank(argv[1]);
  if (argc == 3) {
    test_memory_of_shares(argv[2]);
    test_same_tokens(argv[2], THALWEG_SPLIT_TENSOR);
  }
  test_environment();
  if (failures == 0) printf("all passed\n");
  return failures == 0 ? 0 : 1;
}
