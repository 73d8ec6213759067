// On which device a model runs, and what it needs there.

#include <algorithm>
#include <cstdio>
#include <optional>

#include "decode/model_impl.h"
#include "ops/backends.h"
#include "thalweg/backend.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

constexpr std::int64_t kDefaultContext = 32768;
constexpr int kHostChunk = 512;
constexpr int kDeviceChunk = 8192;
// What the driver takes as kernels are loaded and graphs recorded.
constexpr std::uint64_t kDriverBytes = std::uint64_t{256} << 20;

std::string gigabytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(bytes) * 1e-9);
  return text;
}

// The first device that models can run on and is here; none: the host.
std::optional<Device> usable_device() {
  for (const BackendInfo& info : backends()) {
    if (info.type == DeviceType::kCpu || !info.available) continue;
    const DeviceFunctions* functions = backend(info.type).device;
    if (functions != nullptr && functions->resident != nullptr && !functions->resident->only_if_named) {
      return Device{info.type, 0};
    }
  }
  return std::nullopt;
}

}  // namespace

void Model::Impl::choose_context() {
  const std::int64_t made_for = config.context;
  context = options.context > 0 ? options.context
            : made_for > 0      ? std::min(made_for, kDefaultContext)
                                : kDefaultContext;
}

void Model::Impl::choose_rank_device() {
  std::optional<Device> device = options.device ? options.device : usable_device();
  if (device && device->type != DeviceType::kCpu && backend(device->type).unavailable.empty()) {
    const DeviceFunctions* functions = backend(device->type).device;
    const ResidentFunctions* resident = functions != nullptr ? functions->resident : nullptr;
    const std::string name(device_type_name(device->type));
    if (resident == nullptr || resident->ranks == nullptr) {
      device_reason = name + " takes one rank alone";
    } else {
      if (!options.device) device->index = options.ranks->local_rank();
      const int devices = resident->ranks().devices();
      device_reason = device->index < devices
                          ? resident->ranks().unavailable()
                          : name + ":" + std::to_string(device->index) +
                                ", a GPU of its own for each rank, where this machine has " + std::to_string(devices);
    }
    if (options.device && !device_reason.empty()) {
      throw Error("ModelOptions", "device", "the CPU or CUDA, for several ranks", device_reason);
    }
  }
  const bool here = device && device->type != DeviceType::kCpu && device_reason.empty();
  group->assemble();
  const bool everywhere = group->all_agree(here);
  if (options.device) return;
  if (here && !everywhere) device_reason = "another rank has no GPU to run on";
  options.device = everywhere ? *device : kCpu;
}

void Model::Impl::place() {
  if (options.device) {
    place_on(*options.device);
    return;
  }
  if (const std::optional<Device> device = usable_device()) {
    try {
      place_on(*device);
      return;
    } catch (const Error& error) {
      device_reason = error.what();
    }
  }
  place_on(kCpu);
}

void Model::Impl::place_on(Device device) {
  rounds.reset();
  loop.reset();
  kept_logits.reset();
  decoder.reset();
  pool.reset();
  device_weights.reset();
  device_ranks.reset();
  if (group != nullptr && device.type != DeviceType::kCpu && backend(device.type).unavailable.empty()) {
    backend(device.type).device->resident->ranks().make_current(device);
  }
  runtime =
      std::make_unique<decode::Runtime>(device, options.threads, options.pool, options.exact, options.batch_invariant);
  connect_rank_devices();
  draft = options.draft;
  const bool can_draft = runtime->takes_drafts() && group == nullptr && options.state_dtype == DType::kF32;
  if (!can_draft && (draft == DraftMode::kLookup || draft == DraftMode::kMtp)) {
    throw Error("ModelOptions", "draft",
                "off or auto, unless one process runs the model with states in F32, on a device that takes drafts",
                draft == DraftMode::kMtp ? "mtp" : "lookup");
  }
  if (!can_draft) draft = DraftMode::kOff;
  draft_by_mtp = draft != DraftMode::kOff && draft != DraftMode::kLookup && config.has_mtp;
  if (!runtime->on_host()) {
    device_weights = std::make_unique<decode::DeviceWeights>(config_there(), shard ? shard->weights : weights, *runtime,
                                                             draft_by_mtp);
  }
  const int drafts = draft == DraftMode::kOff ? 0 : options.draft_max;
  const DType cache = options.kv_dtype.value_or(options.exact ? DType::kF32 : DType::kF16);
  if (config.head_dim % dtype_info(cache).block_size != 0) {
    throw Error("ModelOptions", "kv_dtype",
                "F16, BF16 or F32 for attention heads of " + std::to_string(config.head_dim),
                std::string(dtype_name(cache)));
  }
  pool = std::make_unique<decode::StatePool>(config_there(), *runtime, options.sequences, context, cache,
                                             options.state_dtype, drafts, draft_by_mtp);
  const int chunk = options.prefill_chunk > 0 ? options.prefill_chunk : runtime->on_host() ? kHostChunk : kDeviceChunk;
  decoder = std::make_unique<decode::Decoder>(config_there(), weights_there(), *runtime, chunk, options.sequences,
                                              drafts, draft_by_mtp);
  decoder->set_group(group.get());
  if (!runtime->on_host()) {
    kept_logits = std::make_unique<decode::KeptLogits>(*runtime, options.sequences, config.vocabulary);
    loop = std::make_unique<decode::DecodeLoop>(*decoder, *pool, config.vocabulary, config.end_tokens);
    if (draft != DraftMode::kOff) {
      rounds = std::make_unique<decode::DraftRounds>(*decoder, *pool, config.vocabulary);
    }
    const std::uint64_t steps =
        decoder->plan(*pool) + kept_logits->bytes() + loop->plan() + (rounds ? rounds->plan() : 0);
    device_bytes = device_weights->bytes() + pool->bytes() + steps;
    const std::uint64_t free = runtime->free_memory();
    if (device_bytes + kDriverBytes > free) {
      throw Error("Model", "device",
                  "room for " + gigabytes(device_bytes + kDriverBytes) + " GB on " + runtime->device_name() +
                      ": weights " + gigabytes(device_weights->bytes()) + ", " + std::to_string(options.sequences) +
                      " sequences of " + std::to_string(context) + " tokens " + gigabytes(pool->bytes()) + ", steps " +
                      gigabytes(steps),
                  gigabytes(free) + " GB free");
    }
    decoder->allocate();
    kept_logits->allocate();
    loop->allocate();
    if (rounds) rounds->allocate();
  }
  pool->allocate();
}

}  // namespace thalweg
