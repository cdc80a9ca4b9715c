#include "common/transport/loader/own_files.hpp"

#include <dlfcn.h>
#include <link.h>

#include <system_error>

namespace ho::transport {
namespace {

namespace fs = std::filesystem;

/// The folder of the program or library that this function is part of.
Result<fs::path> own_folder() {
  Dl_info info{};
  void* extra = nullptr;
  const int known =
      ::dladdr1(reinterpret_cast<const void*>(&own_folder), &info, &extra, RTLD_DL_LINKMAP);
  const auto* const map = static_cast<const link_map*>(extra);
  if (known == 0 || map == nullptr) return Error(Errc::kNotFound, "no name of this program");
  // The program itself has no name in the list of loaded objects.
  const fs::path file = map->l_name[0] == '\0' ? "/proc/self/exe" : map->l_name;
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  if (error) return Error(Errc::kNotFound, file.string() + ": " + error.message());
  return real.parent_path();
}

}  // namespace

Result<fs::path> find_own_file(const std::string& name) {
  const auto own = own_folder();
  if (!own) return own.error();
  std::string tried;
  for (const fs::path& folder : {*own, *own / "hyperoffload", *own / HO_OWN_FILES_FROM_PROGRAMS}) {
    std::error_code error;
    const fs::path file = (folder / name).lexically_normal();
    if (fs::is_regular_file(file, error)) return file;
    tried += (tried.empty() ? "" : ", ") + file.parent_path().string();
  }
  return Error(Errc::kNotFound, name + " is in none of " + tried);
}

}  // namespace ho::transport
