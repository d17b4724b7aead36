// What is wrong in a process that was forked from one that had begun to use devices.
#pragma once

namespace encore::device {

inline constexpr const char* kForked =
    "this process was forked from one that had begun to use Encore's device, which no forked process can use; start "
    "processes anew instead (in Python by multiprocessing.get_context('spawn'))";

}  // namespace encore::device
