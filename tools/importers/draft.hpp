#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/importers/import.hpp"

namespace ho::importers {

/// A name that is safe everywhere: control characters and what is not UTF-8 become '?', and it is
/// cut at 200 bytes.
[[nodiscard]] std::string clean_name(std::string_view name);

/// An op while a step is drafted. Lists may name a storage more than once.
struct DraftOp {
  std::string name;
  std::string phase;
  std::optional<double> duration_ns;  ///< nothing: by the roofline
  double flops = 0;
  double bytes = 0;                  ///< moved; 0: the sizes of all operands
  std::vector<std::uint32_t> reads;  ///< numbers of Draft::add_storage()
  std::vector<std::uint32_t> writes;
  std::vector<std::uint32_t> after;  ///< numbers of Draft::add_op(), all smaller
  bool fixed = false;
  bool recomputable = false;
  bool communication = false;
  double network_bytes = 0;  ///< of communication; 0: the larger of what it reads and writes
};

/// Collects a step while an importer reads its format, then makes a checked graph of it. A value.
class Draft {
 public:
  /// @param storage  its id is given by finish()
  std::uint32_t add_storage(Storage storage);
  [[nodiscard]] Storage& storage(std::uint32_t number) { return storages_.at(number); }
  [[nodiscard]] std::size_t storage_count() const { return storages_.size(); }

  std::uint32_t add_op(DraftOp op);
  [[nodiscard]] const std::vector<DraftOp>& ops() const { return ops_; }
  [[nodiscard]] DraftOp& op(std::uint32_t number) { return ops_.at(number); }
  /// Leaves an op out; whoever named it in `after` gets its own `after`.
  void drop_op(std::uint32_t number);

  void remark(std::string sentence) { notes_.remarks.push_back(std::move(sentence)); }

  /// Derives missing durations, drops what is empty or unused, numbers the rest in order, checks.
  /// A value that is read before anything wrote it, of a storage that began in the step, is
  /// undefined: that read becomes a write.
  /// @return check_graph()'s errors; kInvalidArgument for a duration that is not a number >= 0.
  [[nodiscard]] Result<Imported> finish(std::string_view name, const Rates& rates) &&;

 private:
  [[nodiscard]] Result<std::uint64_t> duration_of(const DraftOp& op);
  void resolve_operands(const DraftOp& in, const std::vector<std::uint32_t>& index_of, Op& out);
  void resolve_after(const DraftOp& in, const std::vector<std::uint32_t>& op_index, Op& out);

  std::vector<Storage> storages_;
  std::vector<DraftOp> ops_;
  std::vector<char> dropped_;
  std::vector<char> written_;
  std::vector<std::uint64_t> last_list_;
  std::uint64_t list_number_ = 0;
  Notes notes_;
};

}  // namespace ho::importers
