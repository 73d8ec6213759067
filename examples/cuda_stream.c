// An operation on the caller's CUDA stream, in C: the caller allocates and copies, the library only enqueues. Prints
// why and exits with 77 if there is no GPU.

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "thalweg/thalweg.h"

enum { kTokens = 500, kKeyHeads = 2, kValueHeads = 4, kSize = 64 };
enum { kKeys = kTokens * kKeyHeads * kSize, kValues = kTokens * kValueHeads * kSize, kGates = kTokens * kValueHeads };

static void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}
static void must(thalweg_status status) {
  if (status != THALWEG_OK) fail(thalweg_error_message());
}
static void must_cuda(cudaError_t error) {
  if (error != cudaSuccess) fail(cudaGetErrorString(error));
}

// Inputs one after the other in one block of memory, so that one copy moves them.
typedef struct inputs {
  float q[kKeys], k[kKeys], v[kValues], g[kGates], beta[kGates];
} inputs;

static void fill(inputs* in) {
  for (int i = 0; i < kKeys; ++i) in->q[i] = sinf((float)(i % 1009)), in->k[i] = cosf((float)(i % 1013));
  for (int i = 0; i < kValues; ++i) in->v[i] = sinf((float)(i % 997) + 0.5F);
  for (int i = 0; i < kGates; ++i) in->g[i] = -0.1F * (float)(i % 7), in->beta[i] = 0.5F + 0.4F * sinf((float)i);
}

static thalweg_chunk_gated_delta_rule_args rule(inputs* in, float* o, thalweg_device device) {
  thalweg_chunk_gated_delta_rule_args args;
  thalweg_chunk_gated_delta_rule_args_init(&args);
  const int64_t keys[] = {1, kTokens, kKeyHeads, kSize};
  const int64_t values[] = {1, kTokens, kValueHeads, kSize};
  args.q = thalweg_tensor_of(in->q, THALWEG_F32, device, 4, keys);
  args.k = thalweg_tensor_of(in->k, THALWEG_F32, device, 4, keys);
  args.v = thalweg_tensor_of(in->v, THALWEG_F32, device, 4, values);
  args.g = thalweg_tensor_of(in->g, THALWEG_F32, device, 3, values);
  args.beta = thalweg_tensor_of(in->beta, THALWEG_F32, device, 3, values);
  args.o = thalweg_tensor_of(o, THALWEG_F32, device, 4, values);
  args.head_map = THALWEG_HEAD_MAP_GROUPED;
  args.qk_norm = THALWEG_QK_NORM_L2;
  return args;
}

int main(void) {
  bool available = false;
  const char* reason = "";
  must(thalweg_device_type_available(THALWEG_CUDA, &available, &reason));
  if (!available) {
    printf("skipped: %s\n", reason);
    return 77;
  }
  inputs* in = malloc(sizeof *in);
  float* o = malloc(kValues * sizeof *o);
  float* expected = malloc(kValues * sizeof *expected);
  if (in == NULL || o == NULL || expected == NULL) fail("no memory");
  fill(in);

  cudaStream_t cuda_stream;
  must_cuda(cudaStreamCreateWithFlags(&cuda_stream, cudaStreamNonBlocking));
  const thalweg_device device = {.type = THALWEG_CUDA, .index = 0};
  thalweg_stream stream;
  thalweg_stream_init(&stream);
  stream.device = device;
  stream.native = cuda_stream;

  inputs* device_in = NULL;
  float* device_o = NULL;
  void* workspace = NULL;
  size_t bytes = 0;
  must_cuda(cudaMalloc((void**)&device_in, sizeof *in));
  must_cuda(cudaMalloc((void**)&device_o, kValues * sizeof *o));
  const thalweg_chunk_gated_delta_rule_args on_device = rule(device_in, device_o, device);
  must(thalweg_chunk_gated_delta_rule_workspace_size(&on_device, &stream, &bytes));
  must_cuda(cudaMalloc(&workspace, bytes > 0 ? bytes : 1));

  // Enqueues two copies and the operation between them, in order, without waiting.
  must_cuda(cudaMemcpyAsync(device_in, in, sizeof *in, cudaMemcpyHostToDevice, cuda_stream));
  must(thalweg_chunk_gated_delta_rule(&on_device, workspace, bytes, &stream));
  must_cuda(cudaMemcpyAsync(o, device_o, kValues * sizeof *o, cudaMemcpyDeviceToHost, cuda_stream));
  must_cuda(cudaStreamSynchronize(cuda_stream));

  // The same on the CPU.
  const thalweg_chunk_gated_delta_rule_args on_cpu = rule(in, expected, (thalweg_device){.type = THALWEG_CPU});
  must(thalweg_chunk_gated_delta_rule_workspace_size(&on_cpu, NULL, &bytes));
  void* scratch = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (scratch == NULL) fail("no memory");
  must(thalweg_chunk_gated_delta_rule(&on_cpu, scratch, bytes, NULL));
  double error = 0;
  double size = 0;
  for (int i = 0; i < kValues; ++i) {
    error += ((double)o[i] - expected[i]) * ((double)o[i] - expected[i]);
    size += (double)expected[i] * expected[i];
  }
  printf("%d tokens on a stream: relative difference from the CPU %.1e\n", kTokens, sqrt(error / size));

  free(scratch);
  cudaFree(workspace);
  cudaFree(device_o);
  cudaFree(device_in);
  cudaStreamDestroy(cuda_stream);
  free(expected);
  free(o);
  free(in);
  return error < 1e-10 * size ? 0 : 1;
}
