/* A stream: every message, in order, for every subscriber. Both ends in one program, for brevity.
 *
 *     cc stream.c -o stream $(pkg-config --cflags --libs tensorlend)
 */
#include <inttypes.h>
#include <stdio.h>
#include <tensorlend.h>

#define FRAMES 5

static tensorlend_status produce(tensorlend_client *client, tensorlend_stream *stream) {
    for (uint32_t i = 0; i < FRAMES; i++) {
        const uint64_t size = 1;
        tensorlend_draft *frame;
        tensorlend_status status = tensorlend_create(client, TENSORLEND_U32, 1, &size, &frame);
        if (status != TENSORLEND_OK)
            return status;
        *(uint32_t *)tensorlend_draft_data(frame) = i;
        status = tensorlend_stream_send(stream, &frame, -1, NULL); /* takes the frame over */
        if (status != TENSORLEND_OK)
            return status;
    }
    return TENSORLEND_OK;
}

static tensorlend_status consume(tensorlend_subscription *frames) {
    for (;;) {
        tensorlend_lease *frame;
        uint64_t number;
        tensorlend_status status = tensorlend_subscription_recv(frames, -1, &frame, &number);
        if (status != TENSORLEND_OK)
            return status;
        const tensorlend_tensor *tensor = tensorlend_lease_tensor(frame);
        printf("frame %" PRIu64 ": %" PRIu32 "\n", number, *(const uint32_t *)tensor->data);
        tensorlend_lease_free(frame);
    }
}

int main(void) {
    tensorlend_client *client = NULL;
    tensorlend_stream *stream = NULL;
    tensorlend_subscription *frames = NULL;
    tensorlend_status status = tensorlend_connect(NULL, &client);

    if (status == TENSORLEND_OK)
        status = tensorlend_stream_open(client, "camera", 8, TENSORLEND_POLICY_BLOCK, &stream);
    if (status == TENSORLEND_OK)
        status = tensorlend_subscribe(client, "camera", TENSORLEND_START_OLDEST, 0, 0, &frames);
    if (status == TENSORLEND_OK)
        status = produce(client, stream);
    tensorlend_stream_close(stream);
    if (status == TENSORLEND_OK)
        status = consume(frames);
    if (status == TENSORLEND_STREAM_ENDED)
        puts("the stream has ended");
    else
        fprintf(stderr, "%s\n", tensorlend_error_message());
    tensorlend_subscription_close(frames);
    tensorlend_client_free(client);
    return status == TENSORLEND_STREAM_ENDED ? 0 : 1;
}
