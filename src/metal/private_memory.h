#pragma once

// Memory of the device that the host cannot reach (MTLStorageModePrivate). Views name it by addresses, so a range of
// addresses without access stands for it: the host that follows such an address crashes.

#include <cstddef>

namespace thalweg::metal {

// Reserves addresses for at least `bytes`, on a page. Throws std::bad_alloc.
void* reserve_addresses(std::size_t bytes);
void release_addresses(void* addresses, std::size_t bytes) noexcept;

// Memory that stays as it is until its turn in a stream comes.
enum class Storage { kShared, kPrivate };
void note_allocation(const void* memory, std::size_t bytes, Storage storage);
// Returns its bytes.
std::size_t forget_allocation(const void* memory) noexcept;

bool is_allocated(const void* memory);
bool is_private(const void* memory);

}  // namespace thalweg::metal
