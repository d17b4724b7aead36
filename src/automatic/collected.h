// Outputs of which only the device knows how long they are. A graph has room for them; when it has run, the host asks
// how long they are, and gives out as much.
#pragma once
#include <vector>

#include "automatic/runs.h"

namespace encore::automatic {

// How many parts there is to be room for, where there were so many in a run before, and are never more than `most`.
int64_t room_for(int64_t count, int64_t most);
size_t bytes_of_room(const Record& record, const Collected& output);

// `at` has all rooms, by output, and `counts` what the device says of each that is collected. False: one had too little
// room, and nothing was given out.
bool give_out(ops::Context& run, const Record& record, std::span<void* const> at, const int64_t* counts);

// Whether such a run may lack room, and what it reads be lost by then: its outputs lie where its inputs do.
bool may_be_lost(const Record& record, std::span<void* const> at, const std::vector<size_t>& bytes, size_t inputs);

}  // namespace encore::automatic
