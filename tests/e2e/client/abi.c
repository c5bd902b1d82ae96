/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI used from C11, and nothing but C11: what a binding of another language would do.
 * usage: cairn_abi_test CONTROL. Exit code 0: all fine, else the failed line was printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/cairn.h"

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              cairn_last_error());                                                    \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

enum { LAYERS = 2, HEADS = 2, TOKENS = 16, DIM = 32 };
enum { PLANE = TOKENS * DIM, HEAD = 2 * PLANE, VALUES = LAYERS * HEADS * HEAD };

/* What bindings in other languages copy by hand must not move. */
_Static_assert(sizeof(cairn_slice) == 20, "cairn_slice");
_Static_assert(sizeof(cairn_view) == 72, "cairn_view");
_Static_assert(sizeof(cairn_memory) == 168, "cairn_memory");
_Static_assert(sizeof(cairn_put_request) == 392, "cairn_put_request");
_Static_assert(sizeof(cairn_get_request) == 280, "cairn_get_request");
_Static_assert(sizeof(cairn_match_result) == 48, "cairn_match_result");
_Static_assert(sizeof(cairn_stats) == 296, "cairn_stats");
_Static_assert(sizeof(cairn_image_spec) == 192, "cairn_image_spec");

static uint16_t source[VALUES], target[VALUES];

static cairn_space_spec spec_of(const cairn_group_spec* group) {
  cairn_space_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.struct_bytes = sizeof spec;
  spec.dtype = CAIRN_DTYPE_BF16;
  spec.model = "abi";
  spec.weights_revision = "r1";
  spec.tokens_per_block = TOKENS;
  spec.group_count = 1;
  spec.groups = group;
  spec.recipe = "raw";
  return spec;
}

static cairn_group_spec group_of(void) {
  cairn_group_spec group;
  memset(&group, 0, sizeof group);
  group.kind = CAIRN_GROUP_KV;
  group.layer_count = LAYERS;
  group.kv_heads = HEADS;
  group.k_dim = DIM;
  group.v_dim = DIM;
  return group;
}

/* K or V inside contiguous [layer, head, plane, token, dim]. */
static cairn_view view_of(uint16_t* values, int plane) {
  cairn_view view;
  memset(&view, 0, sizeof view);
  view.data = values + plane * PLANE;
  view.stride[0] = HEADS * HEAD * 2;
  view.stride[1] = HEAD * 2;
  view.stride[2] = DIM * 2;
  view.stride[3] = 2;
  return view;
}

static cairn_put_request put_of(cairn_key key) {
  cairn_put_request put;
  memset(&put, 0, sizeof put);
  put.struct_bytes = sizeof put;
  put.key = key;
  put.source.form = CAIRN_FORM_SOURCE;
  put.source.data = source;
  put.source.bytes = sizeof source;
  return put;
}

static cairn_get_request get_of(cairn_key key) {
  cairn_get_request get;
  memset(&get, 0, sizeof get);
  get.struct_bytes = sizeof get;
  get.key = key;
  get.target.form = CAIRN_FORM_SOURCE;
  get.target.data = target;
  get.target.bytes = sizeof target;
  return get;
}

static void check_put_get(cairn_space* space, const cairn_key* keys) {
  cairn_put_request puts[3] = {put_of(keys[0]), put_of(keys[1]), put_of(keys[2])};
  puts[1].parent = keys[0];
  puts[1].first_position = TOKENS;
  puts[1].source.form = CAIRN_FORM_VIEWS;
  puts[1].source.k = view_of(source, 0);
  puts[1].source.v = view_of(source, 1);
  puts[1].encode = CAIRN_ENCODE_CLIENT;
  puts[2].source.bytes = 3; /* wrong: only this one fails */
  CHECK(cairn_put_batch(space, puts, 3, 0) == CAIRN_OK);
  CHECK(puts[0].status == CAIRN_OK && puts[1].status == CAIRN_OK);
  CHECK(puts[0].duplicate == 0 && puts[0].image_bytes > sizeof source);
  CHECK(puts[2].status == CAIRN_INVALID_ARGUMENT);
  CHECK(cairn_put(space, &puts[0], 0) == CAIRN_OK && puts[0].duplicate == 1);
  CHECK(puts[0].durability == CAIRN_DURABILITY_NOT_ASKED);
  puts[0].durable = 1; /* this daemon has no tier that lasts */
  CHECK(cairn_put(space, &puts[0], 0) == CAIRN_ABORTED && puts[0].status == CAIRN_ABORTED);
  CHECK(puts[0].durability == CAIRN_DURABILITY_NO_TIER);
  CHECK(puts[0].duplicate == 1 && puts[0].image_bytes > sizeof source);

  cairn_prefetch_result found;
  memset(&found, 0, sizeof found);
  found.struct_bytes = sizeof found;
  CHECK(cairn_prefetch(space, keys, 3, NULL, &found) == CAIRN_OK);
  CHECK(found.in_memory_count == 2 && found.absent_count == 1 && found.on_their_way_count == 0);

  for (int i = 0; i < 2; ++i) {
    for (int decode = 0; decode < 2; ++decode) {
      cairn_get_request get = get_of(keys[i]);
      get.decode = decode;
      memset(target, 0, sizeof target);
      CHECK(cairn_get(space, &get, 0) == CAIRN_OK && get.status == CAIRN_OK);
      CHECK(get.bytes == sizeof target && get.tier == CAIRN_TIER_HOST);
      CHECK(get.first_position == (uint64_t)i * TOKENS);
      CHECK(memcmp(source, target, sizeof target) == 0);
    }
  }
  cairn_get_request views = get_of(keys[0]);
  views.target.form = CAIRN_FORM_VIEWS;
  views.target.k = view_of(target, 0);
  views.target.v = view_of(target, 1);
  memset(target, 0, sizeof target);
  CHECK(cairn_get(space, &views, 0) == CAIRN_OK);
  CHECK(memcmp(source, target, sizeof target) == 0);

  cairn_get_request absent = get_of(keys[2]);
  CHECK(cairn_get(space, &absent, 0) == CAIRN_NOT_FOUND && absent.status == CAIRN_NOT_FOUND);
}

static void check_match(cairn_client* client, cairn_space* space, const cairn_key* keys) {
  cairn_match_options options;
  memset(&options, 0, sizeof options);
  options.struct_bytes = sizeof options;
  cairn_slice slice = {0, 1, 1, 0, 0};
  options.slices = &slice;
  options.slice_count = 1;
  cairn_match_result match;
  memset(&match, 0, sizeof match);
  match.struct_bytes = sizeof match;
  cairn_matched_block blocks[3];
  CHECK(cairn_match(space, keys, 3, &options, &match, blocks) == CAIRN_OK);
  CHECK(match.block_count == 2 && match.token_count == 2 * TOKENS && match.breaker_open == 0);
  CHECK(blocks[1].tier == CAIRN_TIER_HOST && blocks[1].image_bytes > 0);
  cairn_get_request get = get_of(keys[1]);
  get.lease = match.lease;
  get.slice = slice;
  get.target.bytes = sizeof target / LAYERS;
  CHECK(cairn_get(space, &get, 0) == CAIRN_OK);
  CHECK(memcmp(source + VALUES / LAYERS, target, sizeof target / LAYERS) == 0);
  CHECK(cairn_release(client, &match.lease, 1, 0) == CAIRN_OK);
  /* A caller of the first version of the struct, which had no breaker_open. */
  unsigned char old[48];
  memset(old, 0xEE, sizeof old);
  ((cairn_match_result*)old)->struct_bytes = 40;
  CHECK(cairn_match(space, keys, 1, NULL, (cairn_match_result*)old, NULL) == CAIRN_OK);
  CHECK(((cairn_match_result*)old)->block_count == 1 && old[40] == 0xEE);
}

/* What inspect says of an image and its elements make the image again, byte for byte. */
static void check_encode(const cairn_image_info* info, const unsigned char* image) {
  cairn_image_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.struct_bytes = sizeof spec;
  spec.kind = CAIRN_GROUP_KV;
  memcpy(spec.fingerprint, info->fingerprint, sizeof spec.fingerprint);
  spec.key = info->key;
  spec.slice = info->slice;
  spec.tokens = info->tokens;
  spec.dtype = info->dtype;
  spec.k_dim = info->k_dim;
  spec.v_dim = info->v_dim;
  spec.first_position = info->first_position;
  spec.recipe = info->recipe;
  uint64_t bytes_max = 0;
  CHECK(cairn_image_bytes_max(&spec, &bytes_max) == CAIRN_OK && bytes_max >= info->image_bytes);
  cairn_memory memory;
  memset(&memory, 0, sizeof memory);
  memory.form = CAIRN_FORM_SOURCE;
  memory.data = source;
  memory.bytes = sizeof source;
  unsigned char* made = malloc(bytes_max);
  size_t bytes = 0;
  CHECK(cairn_image_encode(&spec, &memory, made, bytes_max, &bytes) == CAIRN_OK);
  CHECK(bytes == info->image_bytes && memcmp(made, image, bytes) == 0);
  CHECK(cairn_image_encode(&spec, &memory, made, bytes - 1, &bytes) == CAIRN_INVALID_ARGUMENT);
  memory.bytes -= 2;
  CHECK(cairn_image_encode(&spec, &memory, made, bytes_max, &bytes) == CAIRN_INVALID_ARGUMENT);
  CHECK(strstr(cairn_last_error(), "source has") != NULL && bytes == info->image_bytes);
  spec.slice.layer_count = 0;
  CHECK(cairn_image_bytes_max(&spec, &bytes_max) == CAIRN_INVALID_ARGUMENT);
  CHECK(strstr(cairn_last_error(), "spec.slice.layer_count") != NULL);
  free(made);
}

static void check_image(cairn_space* space, cairn_key key) {
  const cairn_slice whole = {0, 0, 0, 0, 0};
  uint64_t bytes_max = 0;
  CHECK(cairn_space_image_bytes_max(space, &whole, &bytes_max) == CAIRN_OK);
  unsigned char* image = malloc(bytes_max);
  cairn_get_request get = get_of(key);
  get.target.form = CAIRN_FORM_IMAGE;
  get.target.data = image;
  get.target.bytes = bytes_max;
  CHECK(cairn_get(space, &get, 0) == CAIRN_OK);
  cairn_image_info info;
  memset(&info, 0, sizeof info);
  info.struct_bytes = sizeof info;
  CHECK(cairn_image_inspect(image, get.bytes, &info) == CAIRN_OK);
  CHECK(info.image_bytes == get.bytes && info.source_bytes == sizeof source);
  CHECK(strcmp(info.recipe, "raw") == 0 && info.tokens == TOKENS && info.k_dim == DIM);
  CHECK(memcmp(info.key.bytes, key.bytes, 32) == 0 && info.tile_count == 2 * LAYERS * HEADS);
  CHECK(cairn_image_verify(image, get.bytes, NULL) == CAIRN_OK);
  cairn_memory memory;
  memset(&memory, 0, sizeof memory);
  memory.form = CAIRN_FORM_SOURCE;
  memory.data = target;
  memory.bytes = sizeof target;
  memset(target, 0, sizeof target);
  CHECK(cairn_image_decode(image, get.bytes, &memory) == CAIRN_OK);
  CHECK(memcmp(source, target, sizeof target) == 0);
  check_encode(&info, image);
  image[get.bytes - 1] ^= 1;
  uint64_t corrupt = 0;
  CHECK(cairn_image_verify(image, get.bytes, &corrupt) == CAIRN_DATA_LOSS && corrupt == 1);
  CHECK(cairn_image_decode(image, get.bytes, &memory) == CAIRN_DATA_LOSS);
  image[0] ^= 1;
  CHECK(cairn_image_inspect(image, get.bytes, &info) == CAIRN_INVALID_ARGUMENT);
  free(image);
}

static void check_mistakes(cairn_client* client) {
  cairn_space* space = NULL;
  CHECK(cairn_open_space(client, NULL, 0, &space) == CAIRN_INVALID_ARGUMENT);
  CHECK(strstr(cairn_last_error(), "spec") != NULL);
  cairn_group_spec group = group_of();
  cairn_space_spec spec = spec_of(&group);
  spec.struct_bytes = 0;
  CHECK(cairn_open_space(client, &spec, 0, &space) == CAIRN_INVALID_ARGUMENT);
  CHECK(strstr(cairn_last_error(), "struct_bytes") != NULL);
  spec.struct_bytes = sizeof spec;
  spec.tokens_per_block = 7;
  CHECK(cairn_open_space(client, &spec, 0, &space) == CAIRN_INVALID_ARGUMENT);
  CHECK(strstr(cairn_last_error(), "tokens_per_block") != NULL);
  cairn_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_bytes = sizeof stats;
  CHECK(cairn_stats_get(client, 60001, &stats) == CAIRN_INVALID_ARGUMENT);
  CHECK(space == NULL);
}

/* The first two of three keys are stored. */
static void check_where(cairn_space* space, const cairn_key* keys) {
  cairn_member_blocks members[CAIRN_WHERE_MEMBERS_MAX];
  size_t member_count = 0;
  uint32_t unasked_count = 1;
  CHECK(cairn_where(space, keys, 3, 0, members, CAIRN_WHERE_MEMBERS_MAX, &member_count,
                    &unasked_count) == CAIRN_OK);
  CHECK(member_count == 1 && unasked_count == 0 && members[0].is_self == 1);
  CHECK(members[0].block_count == 2 && members[0].tier_counts[CAIRN_TIER_HOST] == 2);
  CHECK(cairn_where(space, keys, 3, 0, members, 1, &member_count, NULL) == CAIRN_INVALID_ARGUMENT);
}

static void check_figures(cairn_client* client) {
  cairn_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_bytes = sizeof stats;
  CHECK(cairn_stats_get(client, 0, &stats) == CAIRN_OK);
  CHECK(stats.tier_count >= 1 && stats.tiers[0].tier == CAIRN_TIER_HOST);
  CHECK(stats.tiers[0].used_bytes > 0 && stats.session_count >= 1 && stats.daemon_version[0] != 0);
  cairn_counters counters;
  memset(&counters, 0, sizeof counters);
  counters.struct_bytes = sizeof counters;
  CHECK(cairn_counters_get(client, &counters) == CAIRN_OK);
  CHECK(counters.misses == 1 && counters.corrupt == 0 && counters.duplicates == 2);
  CHECK(counters.hits + counters.misses == counters.gets);
  int fetch = 0;
  CHECK(cairn_breaker_recomputed(client, 1000, 1e-6) == CAIRN_OK);
  CHECK(cairn_breaker_advise(client, 1, 1 << 30, &fetch) == CAIRN_OK && fetch == 0);
  CHECK(cairn_breaker_advise_peer(client, 1, 0, 1 << 30, &fetch) == CAIRN_OK && fetch == 1);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(cairn_abi_version() == CAIRN_ABI_VERSION && cairn_version()[0] != 0);
  CHECK(strcmp(cairn_status_name(CAIRN_DATA_LOSS), "DATA_LOSS") == 0);
  for (int i = 0; i < VALUES; ++i) source[i] = (uint16_t)(i * 40503u);

  cairn_connect_options options;
  memset(&options, 0, sizeof options);
  options.struct_bytes = sizeof options;
  options.control = argv[1];
  options.tenant = "abi-test";
  cairn_client* client = NULL;
  CHECK(cairn_connect(&options, &client) == CAIRN_OK);
  check_mistakes(client);

  const cairn_group_spec group = group_of();
  const cairn_space_spec spec = spec_of(&group);
  cairn_space* space = NULL;
  CHECK(cairn_open_space(client, &spec, 0, &space) == CAIRN_OK);
  cairn_space_info info;
  memset(&info, 0, sizeof info);
  info.struct_bytes = sizeof info;
  CHECK(cairn_space_info_get(space, &info) == CAIRN_OK);
  CHECK(info.created == 1 && strcmp(info.recipe, "raw") == 0 && info.tokens_per_block == TOKENS);
  uint8_t fingerprint[32];
  CHECK(cairn_fingerprint("abi-test", &spec, fingerprint) == CAIRN_OK);
  CHECK(memcmp(fingerprint, info.fingerprint, 32) == 0);

  uint32_t tokens[3 * TOKENS + 5];
  for (size_t i = 0; i < sizeof tokens / sizeof *tokens; ++i) tokens[i] = (uint32_t)i;
  cairn_key keys[3];
  size_t key_count = 0;
  CHECK(cairn_derive_chain(fingerprint, tokens, 3 * TOKENS + 5, TOKENS, NULL, 0, keys, 3,
                           &key_count) == CAIRN_OK);
  CHECK(key_count == 3);
  cairn_key second;
  CHECK(cairn_derive_key(fingerprint, &keys[0], tokens + TOKENS, TOKENS, NULL, 0, &second) ==
        CAIRN_OK);
  CHECK(memcmp(&second, &keys[1], sizeof second) == 0);

  check_put_get(space, keys);
  check_match(client, space, keys);
  check_image(space, keys[0]);

  cairn_buffer* buffer = NULL;
  CHECK(cairn_buffer_allocate(client, sizeof source, 0, &buffer) == CAIRN_OK);
  CHECK(cairn_buffer_bytes(buffer) == sizeof source);
  memcpy(cairn_buffer_data(buffer), source, sizeof source);
  cairn_key engine_key;
  CHECK(cairn_opaque_key(fingerprint, "hash", 4, &engine_key) == CAIRN_OK);
  cairn_put_request from_buffer = put_of(engine_key);
  from_buffer.source.data = cairn_buffer_data(buffer);
  CHECK(cairn_put(space, &from_buffer, 0) == CAIRN_OK);
  cairn_buffer_free(buffer);

  check_figures(client);
  uint8_t present[3];
  CHECK(cairn_contains(space, keys, 3, 0, present) == CAIRN_OK);
  CHECK(present[0] == 1 && present[1] == 1 && present[2] == 0);
  check_where(space, keys);
  uint64_t deleted = 0;
  CHECK(cairn_delete(space, keys, 1, 0, &deleted) == CAIRN_OK && deleted == 1);
  CHECK(cairn_invalidate(space, 0, &deleted) == CAIRN_OK && deleted == 2);
  cairn_space_close(space);
  cairn_close(client);
  puts("the C ABI does what its header says");
  return 0;
}
