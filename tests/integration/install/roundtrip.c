#include <hyperoffload/hyperoffload.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char** argv) {
  char sent[] = "one address space", got[sizeof(sent)] = {0};
  ho_connect_options options = {.struct_bytes = sizeof(options), .name = "ten lines"};
  options.pool = argc > 1 ? argv[1] : NULL;
  ho_pool* pool = NULL;
  ho_allocation* memory = NULL;
  uint64_t ticket = 0;
  int bad = ho_connect(&options, &pool) || ho_allocate(pool, 4096, &memory) ||
            ho_register(pool, sent, sizeof(sent)) || ho_register(pool, got, sizeof(got)) ||
            ho_put(pool, memory, 0, sent, sizeof(sent), &ticket) || ho_wait(pool, ticket) ||
            ho_get(pool, memory, 0, got, sizeof(got), &ticket) || ho_wait(pool, ticket);
  puts(bad ? ho_last_error() : got);
  ho_free(pool, memory);
  ho_disconnect(pool);
  return bad || strcmp(sent, got) != 0;
}
