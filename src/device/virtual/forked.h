// A child of fork() lacks the threads that run streams' tasks, and a lock that one of them held is held for ever. So
// the virtual GPU can't be used there, and nothing waits for it; as CUDA can't.
#pragma once

namespace encore::device::virtual_gpu {

// Whether this process was forked from one that had looked for devices. Costs a load, and takes no lock.
bool is_forked();
void check_not_forked();  // throws Error{no_device} if it was
// From now on forks are noticed. Called by whoever asks for a device first.
void notice_forks();

}  // namespace encore::device::virtual_gpu
