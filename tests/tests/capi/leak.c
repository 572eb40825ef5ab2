/* Leaks a draft, which the sanitizers and valgrind must find. */
#include <tensorlend.h>

static void lose(tensorlend_client *client) {
    const uint64_t size = 64;
    tensorlend_draft *draft;
    if (tensorlend_create(client, TENSORLEND_U8, 1, &size, &draft) == TENSORLEND_OK)
        draft = 0;
    (void)draft;
}

int main(void) {
    tensorlend_client *client;
    if (tensorlend_connect(0, &client) != TENSORLEND_OK)
        return 1;
    lose(client);
    tensorlend_client_free(client);
    return 0;
}
