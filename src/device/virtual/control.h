// Knobs of the virtual GPU, for tests. The environment sets the same at start:
//   ENCORE_VIRTUAL_DEVICES       how many devices there are, 0 to 16 (default 1)
//   ENCORE_VIRTUAL_MEMORY_BYTES  capacity of each device (default 4 GiB); those that have none can't be opened
//   ENCORE_VIRTUAL_ARCH          which GPU they play, by its compute capability: 80 (A100), 86, 89, 90 (default), 100,
//                                120: multiprocessors, shared memory, clusters (docs/gpus.md)
//   ENCORE_VIRTUAL_CONDITIONALS  whether graphs have conditional nodes, 0 or 1 (default)
//   ENCORE_VIRTUAL_DELAY_US      every task sleeps a random time up to this before it runs (default 0)
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace encore::device::virtual_gpu {

void set_device_count(int count);
void set_memory_bytes(size_t bytes);
void set_delay_us(int64_t most);
// Whether devices are gone, as CUDA's are for what a process destroys late.
void set_gone(bool gone);

// So many calls from now on fail that launch a graph, or set a kernel of one.
void set_failing_launches(int count);

// What an application does that waits for the whole device (cudaDeviceSynchronize). While anybody captures there it
// fails and ends the captures, whoever calls and whatever their modes.
void synchronize_device(int device);

// Is told the name of each range that begins, and null as it ends. Not while there are any.
using Listener = std::function<void(const char* name)>;
void listen_to_ranges(Listener listener);

void check_not_gone();  // throws device::Gone
size_t memory_bytes();
bool has_conditionals();
void check_launches();  // throws while they are to fail
// Sleeps as the delay asks; called before every task.
void delay();

}  // namespace encore::device::virtual_gpu
