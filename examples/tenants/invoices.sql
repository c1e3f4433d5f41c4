-- A table of the application. Each row belongs to one tenant, and PostgreSQL shows a transaction
-- the rows of the tenant that the setting jobs.tenant names, and no others.

create table public.invoice (
    id bigint generated always as identity primary key,
    tenant text not null,
    amount numeric not null
);

alter table public.invoice enable row level security;
-- The owner of the table is bound as well. A superuser, or a role with bypassrls, never is.
alter table public.invoice force row level security;

-- Without a tenant the setting is missing, or empty in a session that has had one: null matches no
-- row, so that whoever forgets to set it sees nothing.
create policy invoice_of_tenant on public.invoice
using (tenant = nullif(current_setting('jobs.tenant', true), ''))
with check (tenant = nullif(current_setting('jobs.tenant', true), ''));
