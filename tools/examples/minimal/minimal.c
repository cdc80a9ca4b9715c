/* minimal.cpp in C: a graph, a plan for less device memory than it needs, and the loop over ops.
 * usage: minimal POOL, such as unix:/run/hyperoffload/control.sock. Needs `hyperoffload` in PATH.
 */
#include <hyperoffload/hyperoffload.h>
#include <stdio.h>
#include <stdlib.h>

enum { kLayers = 8, kFloats = 1 << 18, kBytes = kFloats * 4, kState = kLayers };

/* Ends the program where a call fails: the pool takes back what the job held. */
static void check(ho_status status) {
  if (status == HO_OK) return;
  fprintf(stderr, "minimal: %s: %s\n", ho_status_name(status), ho_last_error());
  exit(1);
}

/* The step for the analyzer: op i reads weight i, updates it, and adds it to the state. */
static void write_graph(const char* path) {
  FILE* file = fopen(path, "w");
  if (file == NULL) exit(1);
  fprintf(file, "{\"version\":1,\"name\":\"minimal\",\"storages\":[");
  for (int i = 0; i < kLayers; ++i) {
    fprintf(file,
            "{\"id\":%d,\"name\":\"weight%d\",\"kind\":\"WEIGHT\",\"persistent\":true,"
            "\"bytes\":\"%d\"},",
            i, i, kBytes);
  }
  fprintf(file,
          "{\"id\":%d,\"name\":\"state\",\"kind\":\"OPTIMIZER_STATE\",\"persistent\":true,"
          "\"bytes\":\"%d\"}],\"ops\":[",
          kState, kBytes);
  for (int i = 0; i < kLayers; ++i) {
    fprintf(file,
            "%s{\"id\":%d,\"name\":\"layer%d\",\"durationNs\":\"2000000\",\"reads\":[%d,%d],"
            "\"writes\":[%d,%d]}",
            i > 0 ? "," : "", i, i, i, kState, i, kState);
  }
  fprintf(file, "]}\n");
  fclose(file);
}

/* The job's own kernel. It knows addresses only. */
static void layer(float* weight, float* state) {
  for (int i = 0; i < kFloats; ++i) {
    weight[i] += 1;
    state[i] += weight[i];
  }
}

/* A schedule for 4 of the 9 MiB. A job would keep it: it depends on graph and hardware only. */
static void* make_plan(const char* pool, size_t* bytes) {
  char command[512];
  write_graph("graph.json");
  snprintf(command, sizeof command,
           "hyperoffload bench profile hardware.json --seconds 0.5 --pool %s >profile.txt && "
           "hyperoffload analyze graph.json --device-memory 4MiB --hardware hardware.json "
           "--out step.hos >plan.txt",
           pool);
  if (system(command) != 0) exit(1);
  FILE* file = fopen("step.hos", "rb");
  if (file == NULL) exit(1);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void* schedule = malloc(*bytes);
  if (schedule == NULL || fread(schedule, 1, *bytes, file) != *bytes) exit(1);
  fclose(file);
  return schedule;
}

int main(int argc, char** argv) {
  ho_connect_options options = {.struct_bytes = sizeof(options), .name = "minimal"};
  options.pool = argc > 1 ? argv[1] : "unix:/run/hyperoffload/control.sock";
  size_t bytes = 0;
  void* schedule = make_plan(options.pool, &bytes);
  ho_pool* pool = NULL;
  check(ho_connect(&options, &pool));

  /* Here host memory stands for the device's. It outlives the runtime. */
  ho_schedule_needs needs = {.struct_bytes = sizeof(needs)};
  check(ho_schedule_info(schedule, bytes, &needs));
  ho_device_memory memory = {.struct_bytes = sizeof(memory), .arena_bytes = needs.arena_bytes};
  memory.arena = aligned_alloc(needs.align_bytes, needs.arena_bytes);
  ho_runtime* runtime = NULL;
  check(ho_open(pool, &memory, &runtime));
  ho_plan* plan = NULL;
  check(ho_load(runtime, schedule, bytes, &plan));
  free(schedule);

  float* values = calloc(kFloats, sizeof(float)); /* initial values, and the result */
  if (values == NULL) return 1;
  for (uint32_t id = 0; id <= kState; ++id) check(ho_write(plan, id, values, kBytes));
  for (int step = 0; step < 3; ++step) {
    check(ho_step_begin(plan));
    for (uint32_t p = 0; p < ho_position_count(plan); ++p) {
      check(ho_before(plan, p));             /* its operands are in the arena now */
      uint32_t op = ho_position_op(plan, p); /* the plan may have changed the order */
      layer(ho_operand(plan, p, op), ho_operand(plan, p, kState));
      check(ho_after(plan, p));
    }
    check(ho_step_end(plan));
  }
  check(ho_read(plan, kState, values, kBytes));
  ho_counters counters = {.struct_bytes = sizeof(counters)};
  check(ho_get_counters(plan, &counters));
  printf("state %.0f, device memory %.0f of 9 MiB\n", values[kFloats - 1],
         (double)counters.peak_device_bytes / (1 << 20));
  free(values);
  ho_close(runtime); /* ends its plans, too */
  free(memory.arena);
  check(ho_disconnect(pool));
  return 0;
}
