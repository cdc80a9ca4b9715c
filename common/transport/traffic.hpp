#pragma once

#include "common/base/counters.hpp"

namespace ho::transport {

/// Operations in one direction that ended.
struct TrafficWay {
  Counter ops;     ///< all, with those that failed
  Counter errors;  ///< those that failed or were refused
  Counter bytes;   ///< of those that did not
  DurationHistogram latency;
};

/// What a driver has moved for initiators. One thread counts, any thread reads.
struct Traffic {
  TrafficWay get;  ///< out of this node's memory or flash
  TrafficWay put;  ///< into it
};

}  // namespace ho::transport
