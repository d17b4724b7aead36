// Whose pictures have their channels last.
#pragma once
#include <map>

#include "fuse/match.h"

namespace encore::fuse {

// Steps by number, and what they are with their channels last.
using Turned = std::map<int, ChannelsLast>;

// These read and write pictures so; what is between them and others is turned.
void turn(Match& match, Turned steps);

}  // namespace encore::fuse
