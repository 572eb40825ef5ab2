/* A queue: each item goes to one consumer, and comes back unless the consumer confirms it. Both ends in one program, for
 * brevity.
 *
 *     cc queue.c -o queue $(pkg-config --cflags --libs tensorlend)
 */
#include <inttypes.h>
#include <stdio.h>
#include <tensorlend.h>

#define JOBS 3

static tensorlend_status produce(tensorlend_client *client, tensorlend_queue *jobs) {
    for (uint32_t i = 0; i < JOBS; i++) {
        const uint64_t size = 1;
        tensorlend_draft *job;
        tensorlend_status status = tensorlend_create(client, TENSORLEND_U32, 1, &size, &job);
        if (status != TENSORLEND_OK)
            return status;
        *(uint32_t *)tensorlend_draft_data(job) = i;
        status = tensorlend_queue_put(jobs, &job, -1, NULL); /* takes the job over */
        if (status != TENSORLEND_OK)
            return status;
    }
    return TENSORLEND_OK;
}

static tensorlend_status consume(tensorlend_queue *jobs) {
    for (;;) {
        tensorlend_queue_item *job;
        tensorlend_status status = tensorlend_queue_get(jobs, 0, &job); /* a worker waits: -1 */
        if (status != TENSORLEND_OK)
            return status;
        const tensorlend_tensor *tensor = tensorlend_lease_tensor(tensorlend_queue_item_value(job));
        const uint32_t number = *(const uint32_t *)tensor->data;
        printf("job %" PRIu64 ": %" PRIu32 " squared is %" PRIu32 "\n", tensorlend_queue_item_number(job), number,
               number * number);
        status = tensorlend_queue_item_done(&job, NULL); /* takes the job over */
        if (status != TENSORLEND_OK)
            return status;
    }
}

int main(void) {
    tensorlend_client *client = NULL;
    tensorlend_queue *jobs = NULL;
    tensorlend_status status = tensorlend_connect(NULL, &client);

    if (status == TENSORLEND_OK)
        status = tensorlend_queue_open(client, "jobs", 100, &jobs);
    if (status == TENSORLEND_OK)
        status = produce(client, jobs);
    if (status == TENSORLEND_OK)
        status = consume(jobs);
    if (status == TENSORLEND_TIMEOUT)
        puts("the queue is empty");
    else
        fprintf(stderr, "%s\n", tensorlend_error_message());
    tensorlend_queue_free(jobs);
    tensorlend_client_free(client);
    return status == TENSORLEND_TIMEOUT ? 0 : 1;
}
