#include "plugin/model/plan_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "fuse/plan_text.h"

namespace encore::plugin {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const fuse::Plan& plan) {
  std::error_code ignored;  // the file says it, if it is not there then
  fs::create_directories(file.parent_path(), ignored);
  std::ofstream out(file);
  out << fuse::text_of(plan);
  for (const std::string& note : plan.notes) out << "# " << note << "\n";
  out.close();
  require(out.good(), "provider option 'dump_regions': ", file.string(), " cannot be written");
}

}  // namespace

fuse::Watch plan_files(const std::string& folder, std::string name) {
  if (folder.empty()) return {};
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  std::ranges::replace_if(name, std::not_fn(is_plain), '_');
  return [to = fs::path(folder) / name, count = 0](const char* pass, const fuse::Plan& plan) mutable {
    write(to / text(count < 10 ? "0" : "", count, "_", pass, ".txt"), plan);
    ++count;
  };
}

}  // namespace encore::plugin
