// Plans as files, for whoever wants to see what became of a region (`dump_regions`).
#pragma once
#include <string>

#include "fuse/plan.h"

namespace encore::plugin {

// Writes FOLDER/<name>/00_as_claimed.txt and a file for each pass after it; the name has letters that suit a path.
// Nothing if there is no folder. Error{invalid_input} if one cannot be written.
fuse::Watch plan_files(const std::string& folder, std::string name);

}  // namespace encore::plugin
