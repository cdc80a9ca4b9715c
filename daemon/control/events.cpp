#include "daemon/control/events.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.hpp"
#include "common/text/utf8.hpp"

namespace ho::daemon {

namespace {

std::uint64_t wall_time_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 0));
}

std::string shortened(const std::string& text) {
  return std::string(utf8_prefix(text, Events::kTextBytesMax));
}

}  // namespace

void Events::note(const Note& note) {
  std::vector<LogField> fields;
  if (note.session.value() != 0) {
    fields.push_back({"session", std::to_string(note.session.value())});
  }
  fields.insert(fields.end(), note.fields.begin(), note.fields.end());
  if (!note.who.empty()) fields.push_back({"peer", note.who});
  const auto kind = static_cast<std::size_t>(note.kind);
  fields.push_back({"kind", std::string(kEventKindNames.at(kind))});
  log_fields(note.level, note.what, fields);
  keep(note);
}

void Events::keep(const Note& note) {
  HO_CHECK(!note.what.empty());
  std::deque<Kept>& kind = kept_.at(static_cast<std::size_t>(note.kind));
  Kept kept;
  kept.info.number = ++last_;
  kept.info.time_ms = wall_time_ms();
  kept.info.kind = note.kind;
  kept.info.what = std::string(note.what);
  kept.info.session = note.session;
  kept.info.who = shortened(note.who);
  kept.info.detail = shortened(fields_text(note.fields));
  kept.owner = note.owner;
  kind.push_back(std::move(kept));
  if (kind.size() > kKeptPerKind) kind.pop_front();
}

Events::Page Events::after(std::uint64_t number, const std::string& owner) const {
  Page page;
  std::vector<const Kept*> held;
  for (const std::deque<Kept>& kind : kept_) {
    const auto first = std::partition_point(
        kind.begin(), kind.end(), [&](const Kept& one) { return one.info.number <= number; });
    for (auto one = first; one != kind.end(); ++one) held.push_back(&*one);
  }
  std::sort(held.begin(), held.end(),
            [](const Kept* a, const Kept* b) { return a->info.number < b->info.number; });
  page.more = held.size() > kPerPage;
  if (page.more) held.resize(kPerPage);
  page.last = page.more ? held.back()->info.number : last_;
  page.lost = page.last > number ? page.last - number - held.size() : 0;
  for (const Kept* const one : held) {
    if (owner.empty() || one->owner == owner) page.events.push_back(one);
  }
  return page;
}

}  // namespace ho::daemon
